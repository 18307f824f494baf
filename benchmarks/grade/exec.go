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
	"github.com/milepost-rl/milepost/env/testrun"
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

// Run grades a patch up to the judge: it writes the evaluation's output to the file named logFile and returns what there
// is to judge. A patch that is nil or "" runs nothing. What the patch or the tests did wrong is in the evidence; the
// error is the infrastructure's (Kind.Infra), the task's (invalid, not_found) or a cancellation.
func (x *Executor) Run(ctx context.Context, t *milepost.Task, patch *string, logFile string) (*Evidence, error) {
	ev := &Evidence{Patch: patch}
	if patch == nil || *patch == "" {
		return ev, nil
	}
	s, err := x.open(ctx, t)
	if errors.Is(err, testrun.ErrPrepare) {
		ev.Fault, ev.Reason = SetupFailed, err.Error()
		return ev, nil
	}
	if err != nil {
		return nil, err
	}
	err = x.run(ctx, s, t, ev, logFile)
	if closeErr := s.Close(context.WithoutCancel(ctx)); err == nil {
		err = closeErr
	}
	return ev, err
}

// open makes the sandbox. A task of a data set is graded on the repository as its image holds it, with the history that
// evaluations reset files from; one of Milepost's own on its base, wherever that lies.
func (x *Executor) open(ctx context.Context, t *milepost.Task) (*env.Sandbox, error) {
	spec := env.Spec{Name: "grade " + t.ID, Image: t.Image, Workdir: t.Workdir, Limits: x.Limits, Mounts: mountsOf(t)}
	if t.Workdir != "" && (t.BaseTree == "" || !own(t)) {
		return testrun.OpenImage(ctx, x.Env, t, spec)
	}
	base, err := x.Bases.Base(ctx, t)
	if err != nil {
		return nil, err
	}
	spec.Base = base.Dir
	return x.Env.Create(ctx, spec)
}

// mountsOf are the task's own files, as its evaluation wants to see them.
func mountsOf(t *milepost.Task) (mounts []env.Mount) {
	if g := t.Grading; g != nil && g.Folder != "" {
		mounts = append(mounts, env.Mount{Host: g.Folder, Path: gradingMount})
		if g.Rule == milepost.GradeRewardFile {
			mounts = append(mounts, env.Mount{Host: filepath.Join(g.Folder, "tests"), Path: "/tests"})
		}
	}
	return mounts
}

// run is Run in its sandbox.
func (x *Executor) run(ctx context.Context, s *env.Sandbox, t *milepost.Task, ev *Evidence, logFile string) error {
	root := s.Root()
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
		ev.Output, err = testrun.ReadOutput(ctx, s, g.Output)
	}
	return err
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
	r, n, err := stream(ctx, s, env.Command{Argv: testrun.EvalShell, Env: evalVars(t), Limits: limits}, Script(t, root), file, maxLog)
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
	vars := maps.Clone(testrun.GitEnv)
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
