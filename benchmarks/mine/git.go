package mine

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
	"github.com/milepost-rl/milepost/env/repo"
)

// repository is a git repository that is only read.
type repository struct{ dir string }

// git runs a command on it.
func (r repository) git(ctx context.Context, args ...string) ([]byte, error) {
	cmd := repo.Git(ctx, append([]string{"-c", "core.quotePath=false", "-c", "log.showSignature=false"}, args...)...)
	cmd.Dir = r.dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, milepost.Wrap("mine: git", milepost.KindCanceled, ctx.Err())
	}
	if err != nil {
		return nil, milepost.E("mine: git", milepost.KindInvalid, "git %s in %s: %w: %s", args[0], r.dir, err, pypkg.LastLines(stderr.Bytes(), 3))
	}
	return out, nil
}

// change is one changed path between two commits.
type change struct {
	path     string
	status   byte // A, M, D or T (another kind of file)
	mode     string
	old, new string // blob ids; zeros where there is none
}

// regular reports whether the path is a plain file on the sides on which it exists.
func (c change) regular() bool {
	return c.status != 'T' && (c.mode == "100644" || c.mode == "100755" || c.status == 'D')
}

// changes lists what differs between two commits, sorted by path.
func (r repository) changes(ctx context.Context, from, to string) ([]change, error) {
	out, err := r.git(ctx, "diff-tree", "-r", "-z", "--no-renames", "--full-index", "--raw", from, to)
	if err != nil {
		return nil, err
	}
	var all []change
	fields := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(fields); i += 2 { // ":100644 100644 OLD NEW M", then the path
		f := strings.Fields(strings.TrimPrefix(fields[i], ":"))
		if len(f) != 5 {
			return nil, milepost.E("mine: git", milepost.KindInternal, "diff-tree gave %q", fields[i])
		}
		all = append(all, change{path: fields[i+1], status: f[4][0], mode: f[1], old: f[2], new: f[3]})
	}
	return all, nil
}

// patch is the change of one path as git apply takes it.
func (r repository) patch(ctx context.Context, from, to, path string) (string, error) {
	out, err := r.git(ctx, "diff", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", from, to, "--", path)
	return string(out), err
}

// text is the content of a blob.
func (r repository) text(ctx context.Context, blob string) ([]byte, error) {
	return r.git(ctx, "cat-file", "blob", blob)
}

// lines counts the added and removed lines of a patch.
func lines(patch string) (n int) {
	for l := range strings.Lines(patch) {
		if (l[0] == '+' || l[0] == '-') && !strings.HasPrefix(l, "+++ ") && !strings.HasPrefix(l, "--- ") {
			n++
		}
	}
	return n
}

// short is how an id is shown.
func short(id string) string { return fmt.Sprintf("%.12s", id) }
