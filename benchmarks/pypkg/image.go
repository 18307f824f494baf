package pypkg

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env"
)

// InImage returns a copy of a made task whose repository lies in an image, at workdir, where it holds the files of a
// release: Task.Prepare is what leads from these to the task's own base. The copy is not prepared, and its certificate has to
// be found anew. Kinds: invalid for a task that is in an image already, a repository that cannot be read, and a difference
// that is no text.
func InImage(t *milepost.Task, release []benchmarks.File, image, workdir string) (*milepost.Task, error) {
	const op = "pypkg: task in image"
	if t.Workdir != "" || t.Grading != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "task %s is not one that a maker wrote: its repository lies in an image, or a data set judges it", t.ID)
	}
	base, err := baseFiles(t)
	if err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "task %s: %w", t.ID, err)
	}
	c := *t
	c.Image, c.Workdir, c.Repo, c.BaseCommit, c.BaseTree = image, workdir, "", "", ""
	c.Test.Resident = "" // its processes are elsewhere
	if c.Prepare, err = lead(release, base); err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "task %s: %w", t.ID, err)
	}
	return &c, nil
}

// baseFiles are the files that the task starts from.
func baseFiles(t *milepost.Task) ([]benchmarks.File, error) {
	r, err := git.PlainOpenWithOptions(t.Repo, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", t.Repo, err)
	}
	commit, err := r.CommitObject(plumbing.NewHash(t.BaseCommit))
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", t.BaseCommit, err)
	}
	tree, err := commit.Tree()
	if err != nil {
		return nil, err
	}
	files, plain, err := benchmarks.TreeFiles(tree)
	if err == nil && !plain {
		err = fmt.Errorf("its base holds links or submodules, which no release has")
	}
	return files, err
}

// lead are shell commands that make the one set of files, in the working directory, the other; none where they are equal.
func lead(from, to []benchmarks.File) (commands []string, err error) {
	have, want := map[string][]byte{}, map[string]bool{}
	for _, f := range from {
		have[f.Path] = f.Data
	}
	var patch strings.Builder
	slices.SortFunc(to, func(a, b benchmarks.File) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range to {
		want[f.Path] = true
		before, there := have[f.Path]
		switch {
		case there && bytes.Equal(before, f.Data):
		case !utf8.Valid(before) || !utf8.Valid(f.Data):
			return nil, fmt.Errorf("%s differs from the release's and is no text", f.Path)
		case there:
			patch.WriteString(benchmarks.Diff(f.Path, string(before), string(f.Data)))
		default:
			patch.WriteString(benchmarks.Added(f.Path, string(f.Data)))
		}
	}
	var gone []string
	for _, f := range from {
		if !want[f.Path] && !env.IsCache(f.Path) { // an image may lack those, and no base has them
			gone = append(gone, "'"+strings.ReplaceAll(f.Path, "'", `'\''`)+"'")
		}
	}
	if slices.Sort(gone); len(gone) > 0 {
		commands = append(commands, "rm -- "+strings.Join(gone, " "))
	}
	if patch.Len() > 0 {
		commands = append(commands, benchmarks.ApplyCommand(patch.String()))
	}
	return commands, nil
}
