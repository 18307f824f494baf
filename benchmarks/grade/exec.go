package grade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// DefaultMaxLog is how much of an evaluation's output is kept and read, in bytes. Memory for judging is about one and a
// half times the log.
const DefaultMaxLog = 256 << 20

// Executor runs one grading: each in a sandbox of its own that nothing used before and nothing uses after. It is safe for
// concurrent use.
type Executor struct {
	Env     *env.Env
	Bases   *repo.Store   // base repositories of tasks that name one
	Limits  env.Limits    // of the evaluation; wall is Timeout, zero fields take the environment's
	Timeout time.Duration // of the evaluation, for tasks that state none; positive
	MaxLog  int64         // bytes of output kept; 0 is DefaultMaxLog
}

// evalShell runs a script that comes by standard input, with both streams in one and nothing to read.
var evalShell = []string{"bash", "-c", `exec 2>&1; script=$(cat); exec </dev/null; eval "$script"`}

// Run grades a patch up to the judge: it writes the evaluation's output to the file named logFile and returns what there
// is to judge. A patch that is nil or "" runs nothing. What the patch or the tests did wrong is in the evidence; the
// error is the infrastructure's (Kind.Infra), the task's (invalid, not_found) or a cancellation.
func (x *Executor) Run(ctx context.Context, t *milepost.Task, patch *string, logFile string) (*Evidence, error) {
	ev := &Evidence{Patch: patch}
	if patch == nil || *patch == "" {
		return ev, nil
	}
	spec := env.Spec{Name: "grade " + t.ID, Image: t.Image, Limits: x.Limits}
	if t.Workdir == "" {
		base, err := x.Bases.Base(ctx, t)
		if err != nil {
			return nil, err
		}
		spec.Base = base.Dir
	}
	if g := t.Grading; g != nil && g.Folder != "" {
		spec.Mounts = append(spec.Mounts, env.Mount{Host: g.Folder, Path: gradingMount})
		if tests := filepath.Join(g.Folder, "tests"); g.Rule == milepost.GradeRewardFile {
			spec.Mounts = append(spec.Mounts, env.Mount{Host: tests, Path: "/tests"})
		}
	}
	s, err := x.Env.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	err = x.run(ctx, s, t, ev, logFile)
	if closeErr := s.Close(context.WithoutCancel(ctx)); err == nil {
		err = closeErr
	}
	return ev, err
}

// run is Run in its sandbox.
func (x *Executor) run(ctx context.Context, s *env.Sandbox, t *milepost.Task, ev *Evidence, logFile string) error {
	root := s.Root()
	if t.Workdir != "" {
		root = t.Workdir
		if r, err := s.Exec(ctx, env.Command{Argv: []string{"test", "-d", root}}); err != nil {
			return err
		} else if r.ExitCode != 0 {
			return milepost.E("grade: open repository", milepost.KindInvalid, "the sandbox has no folder %s: the task lies in image %s, which wants a driver of sandboxes with images", root, t.Image)
		}
	}
	for i, c := range t.Prepare {
		r, err := inTree(ctx, s, root, "", "bash", "-c", c)
		if err != nil {
			return err
		}
		if r.ExitCode != 0 || r.TimedOut {
			ev.Fault, ev.Reason = SetupFailed, fmt.Sprintf("prepare command %d ended with %d: %.500s%.500s", i+1, r.ExitCode, r.Stdout, r.Stderr)
			return nil
		}
	}
	by, words, err := apply(ctx, s, root, *ev.Patch)
	if err != nil {
		return err
	}
	if by == "" {
		ev.Fault, ev.Reason = PatchFailed, words
		return nil
	}
	ev.AppliedBy = by
	if err := x.evaluate(ctx, s, t, root, ev, logFile); err != nil {
		return err
	}
	if g := t.Grading; g != nil && g.Output != "" {
		r, err := s.Exec(ctx, env.Command{Argv: []string{"cat", "--", g.Output}, Limits: env.Limits{Output: 64 << 20}})
		if err != nil {
			return err
		}
		if r.ExitCode == 0 && !r.StdoutTruncated {
			ev.Output = append([]byte{}, r.Stdout...)
		}
	}
	return nil
}

// evaluate runs the script, keeps its output on disk, and reads it.
func (x *Executor) evaluate(ctx context.Context, s *env.Sandbox, t *milepost.Task, root string, ev *Evidence, logFile string) error {
	const op = "grade: evaluate"
	limits := x.Limits
	if limits.Wall = t.Test.Timeout; limits.Wall <= 0 {
		limits.Wall = x.Timeout
	}
	maxLog := x.MaxLog
	if maxLog == 0 {
		maxLog = DefaultMaxLog
	}
	file, err := os.Create(logFile)
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	r, n, err := stream(ctx, s, env.Command{Argv: evalShell, Env: evalVars(t), Limits: limits}, Script(t, root), file, maxLog)
	ev.Limit, ev.TimedOut, ev.Memory, ev.TooLong, ev.Duration = limits.Wall, r.TimedOut, r.OutOfMemory, n > maxLog, r.Duration
	if err == nil && ev.TimedOut {
		_, err = fmt.Fprintf(file, "\n\nTimeout error: %d seconds exceeded.", int(ev.Limit.Seconds()))
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil || ev.TooLong {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	ev.Log, err = ReadLog(logFile, maxLog+1024)
	return err
}

// evalVars is the environment of an evaluation.
func evalVars(t *milepost.Task) map[string]string {
	vars := maps.Clone(gitVars)
	if own(t) {
		vars["PYTHONHASHSEED"] = "0" // as env/testrun: a run is a function of the tree
	}
	maps.Copy(vars, t.Test.Env)
	return vars
}

// stream runs a command with the given standard input and copies its output to w, up to one byte more than max; n is
// how much that was. A command that prints more is killed.
func stream(ctx context.Context, s *env.Sandbox, cmd env.Command, stdin string, w io.Writer, max int64) (r env.Result, n int64, err error) {
	p, err := s.Start(ctx, cmd)
	if err != nil {
		return r, 0, err
	}
	stop := context.AfterFunc(ctx, p.Kill)
	defer stop()
	go func() { // ends when the script is read, or with the process
		_, _ = io.WriteString(p.Stdin, stdin)
		_ = p.Stdin.Close()
	}()
	n, copyErr := io.Copy(w, io.LimitReader(p.Stdout, max+1))
	if n > max || copyErr != nil {
		p.Kill()
	}
	_, _ = io.Copy(io.Discard, p.Stdout)
	r, err = p.Wait()
	switch {
	case ctx.Err() != nil:
		err = milepost.Wrap("grade: evaluate", milepost.KindCanceled, ctx.Err())
	case err == nil:
		err = copyErr
	}
	return r, n, err
}

// ReadLog reads a log on disk as the judge wants it. Kinds: limit for more than max bytes, not_found, unavailable.
func ReadLog(path string, max int64) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", milepost.Wrap("grade: read log", milepost.KindNotFound, err)
	}
	if err != nil {
		return "", milepost.Wrap("grade: read log", milepost.KindUnavailable, err)
	}
	defer f.Close()
	return logs.ReadText(f, max)
}

// addsStartup names the files that a patch adds and a Python test runner reads unasked.
func addsStartup(patch string) (names []string) {
	before := ""
	for line := range strings.SplitSeq(patch, "\n") {
		if strings.HasPrefix(line, "--- ") {
			before = line
		}
		p, ok := strings.CutPrefix(line, "+++ b/")
		if !ok || !strings.HasPrefix(before, "--- /dev/null") {
			continue
		}
		for _, name := range planted {
			if p == name || strings.HasSuffix(p, "/"+name) {
				names = append(names, p)
			}
		}
	}
	return names
}
