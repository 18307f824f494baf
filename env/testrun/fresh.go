package testrun

import (
	"context"
	"io/fs"
	"path"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testlog"
)

// maxTestLog is how much of a test command's output is read for results, per stream.
const maxTestLog = 128 << 20

// fresh runs the task's command in a sandbox of its own, whose workspace is the base (with .git) and the delta.
func (r *Runner) fresh(ctx context.Context, task *milepost.Task, base *repo.Base, changes overlay) (Outcome, error) {
	sandbox, err := r.env.Create(ctx, env.Spec{Name: "test " + task.ID, Base: base.Dir, Image: task.Image, Workdir: task.Workdir, Limits: r.cfg.Limits})
	if err != nil {
		return Outcome{}, err
	}
	out, err := r.runFresh(ctx, sandbox, task, base, changes)
	if closeErr := sandbox.Close(ctx); err == nil {
		err = closeErr
	}
	return out, err
}

func (r *Runner) runFresh(ctx context.Context, sandbox *env.Sandbox, task *milepost.Task, base *repo.Base, changes overlay) (Outcome, error) {
	if err := writeDelta(ctx, sandbox, base, changes.delta, changes.blobs(r.blobs)); err != nil {
		return Outcome{}, err
	}
	limits := r.cfg.Limits
	limits.Wall, limits.Output = r.timeout(task), maxTestLog
	vars := map[string]string{"PYTHONHASHSEED": "0"} // as in resident processes: a test run is a function of the tree
	for k, v := range task.Test.Env {
		vars[k] = v
	}
	res, err := sandbox.Exec(ctx, env.Command{Argv: task.Test.Argv, Env: vars, Limits: limits})
	if err != nil {
		return Outcome{}, err
	}
	log := append(append(res.Stdout, '\n'), res.Stderr...)
	out := Outcome{Log: clip(log, r.cfg.LogBytes)}
	switch {
	case res.TimedOut:
		out.Status, out.Reason = milepost.ProbeTimeout, "the tests ran past "+limits.Wall.String()
		return out, nil
	case res.OutOfMemory:
		out.Status, out.Reason = milepost.ProbeMemory, "the tests ran out of memory"
		return out, nil
	case res.StdoutTruncated || res.StderrTruncated:
		out.Status, out.Reason = milepost.ProbeUnparsed, "the tests printed more than is read"
		return out, nil
	}
	report, extra, err := testlog.Parse(task.Test.Format, log, task.Tests)
	if err != nil {
		return Outcome{}, err
	}
	if report.Count(milepost.NotRun) == len(report) && len(extra) == 0 {
		out.Status, out.Reason = milepost.ProbeUnparsed, "the output of the test command holds no test result in format "+task.Test.Format
		return out, nil
	}
	out.Status, out.Report, out.Extra = milepost.ProbeCompleted, report, extra
	return out, nil
}

// writeDelta brings the workspace from the base to base + delta. Directories that the tree no longer has go, too: an empty
// one would still be importable.
func writeDelta(ctx context.Context, sandbox *env.Sandbox, base *repo.Base, delta []milepost.TreeChange, blobs repo.BlobGetter) error {
	needed := map[string]bool{".": true}
	for p := range base.Index.Apply(delta) {
		for d := path.Dir(p); !needed[d]; d = path.Dir(d) {
			needed[d] = true
		}
	}
	gone := map[string]bool{}
	for _, c := range delta {
		if !c.Deleted {
			continue
		}
		top := c.Path
		for d := path.Dir(top); !needed[d]; d = path.Dir(d) {
			top = d
		}
		if !gone[top] {
			gone[top] = true
			if err := sandbox.Remove(ctx, top); err != nil {
				return err
			}
		}
	}
	for _, c := range delta {
		if c.Deleted {
			continue
		}
		if err := writeChange(ctx, sandbox, base, c, blobs); err != nil {
			return err
		}
	}
	return nil
}

func writeChange(ctx context.Context, sandbox *env.Sandbox, base *repo.Base, c milepost.TreeChange, blobs repo.BlobGetter) error {
	data, err := blobs.Get(c.Blob)
	if err != nil {
		return err
	}
	if got := repo.HashBlob(data); got != c.Blob {
		return milepost.E("testrun: write tree", milepost.KindCorrupt, "%q: blob %s came with the bytes of %s", c.Path, c.Blob, got)
	}
	// A link is not written through, and a file does not become a link in place.
	if have, ok := base.Index[c.Path]; ok && (have.Mode == repo.ModeSymlink || c.Mode == repo.ModeSymlink) {
		if err := sandbox.Remove(ctx, c.Path); err != nil {
			return err
		}
	}
	switch c.Mode {
	case repo.ModeSymlink:
		return sandbox.Symlink(ctx, string(data), c.Path)
	case repo.ModeExecutable:
		return sandbox.WriteFile(ctx, c.Path, data, fs.FileMode(0o755))
	default:
		return sandbox.WriteFile(ctx, c.Path, data, fs.FileMode(0o644))
	}
}
