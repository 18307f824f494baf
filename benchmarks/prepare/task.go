package prepare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// UpstreamCommit is the key of Task.Meta under which a prepared task keeps the base commit that its data set named.
const UpstreamCommit = "upstream_commit"

// task returns a prepared copy of a task.
func (p *Preparer) task(ctx context.Context, t *milepost.Task, bases *history) (*milepost.Task, error) {
	made := *t
	var err error
	if made.Image, err = p.Images.Digest(ctx, t.Image); err != nil {
		return nil, milepost.E("prepare", milepost.KindOf(err), "task %s, image %s: %w", t.ID, t.Image, err)
	}
	if !t.Prepared() && t.BaseCommit != "" {
		made.Meta = maps.Clone(t.Meta)
		if made.Meta == nil {
			made.Meta = map[string]string{}
		}
		made.Meta[UpstreamCommit] = t.BaseCommit
	}
	if err := p.takeBase(ctx, &made, bases); err != nil {
		return nil, err
	}
	made.Repo = bases.dir
	return &made, p.prove(ctx, &made)
}

// takeBase fills in environment, base commit and base tree from the task's image.
func (p *Preparer) takeBase(ctx context.Context, t *milepost.Task, bases *history) (err error) {
	bare := *t
	bare.Prepare = nil
	s, err := testrun.OpenImage(ctx, p.Env, &bare, env.Spec{Name: "prepare " + t.ID})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	if err := checkTools(ctx, s, t); err != nil {
		return err
	}
	vars, err := environment(ctx, s)
	if err != nil {
		return milepost.E("prepare", milepost.KindOf(err), "task %s, image %s: %w", t.ID, t.Image, err)
	}
	t.Test.Env = under(vars, t.Test.Env)
	if err := testrun.Prepare(ctx, s, t); err != nil {
		return err
	}
	want, err := s.Tree(ctx)
	if err != nil {
		return err
	}
	if t.BaseCommit, t.BaseTree, err = bases.add(ctx, func(w io.Writer) error { return s.Archive(ctx, w) }); err != nil {
		return err
	}
	if t.BaseTree != want {
		return milepost.E("prepare", milepost.KindCorrupt, "task %s: the base was stored as tree %s, the repository in its image has %s", t.ID, t.BaseTree, want)
	}
	return nil
}

// python finds a use of Python in what runs a task's tests.
var python = regexp.MustCompile(`\b(python3?|pytest|tox)\b`)

// checkTools names the programs that the image lacks and work on it needs: bash and git always, Python where the tests use it.
func checkTools(ctx context.Context, s *env.Sandbox, t *milepost.Task) error {
	tools := [][]string{{"bash", "--version"}, {"git", "--version"}}
	commands := strings.Join(t.Test.Argv, " ")
	if g := t.Grading; g != nil {
		commands += " " + strings.Join(append(append([]string{g.Script, g.LogParser}, g.Setup...), g.Commands...), " ")
	}
	if python.MatchString(commands) {
		tools = append(tools, []string{"bash", "-c", "command -v python3 || command -v python || ls /opt/miniconda3/envs/testbed/bin/python"})
	}
	for _, argv := range tools {
		r, err := s.Exec(ctx, env.Command{Argv: argv})
		if err != nil {
			return err
		}
		if r.ExitCode != 0 {
			name := argv[0]
			if len(argv) > 2 {
				name = "python3"
			}
			return milepost.E("prepare", milepost.KindInvalid, "task %s: image %s has no %s, which work on the repository in it needs", t.ID, t.Image, name)
		}
	}
	return nil
}

// prove opens the task as an agent will see it: the workspace is the base, and no object of git's leads anywhere else.
func (p *Preparer) prove(ctx context.Context, t *milepost.Task) (err error) {
	dir, err := os.MkdirTemp(p.Scratch, "base-") // of its own, since a base may be hundreds of megabytes
	if err != nil {
		return milepost.Wrap("prepare: prove", milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := repo.NewStore(dir)
	if err != nil {
		return err
	}
	base, err := store.Base(ctx, t)
	if err != nil {
		return err
	}
	s, err := p.Env.Create(ctx, env.Spec{Name: "prove " + t.ID, Base: base.Dir, Image: t.Image, Workdir: t.Workdir, Env: t.Test.Env})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	if tree, err := s.Tree(ctx); err != nil {
		return err
	} else if tree != t.BaseTree {
		return milepost.E("prepare: prove", milepost.KindCorrupt, "task %s: a sandbox of it has tree %s, not the base tree %s", t.ID, tree, t.BaseTree)
	}
	if _, err := repo.ProveScrubbed(ctx, s, ".", base.Commit); err != nil {
		return fmt.Errorf("task %s: %w", t.ID, err)
	}
	return nil
}
