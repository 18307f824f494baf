package testrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// Evaluation knows how data sets judge (Task.Grading); package benchmarks/grade has one. Its methods are pure.
type Evaluation interface {
	// Judges reports whether the task's grading, and not its test command, says how each test ended.
	Judges(task *milepost.Task) bool
	// Script is the evaluation as a bash script, which writes everything to one stream; root is the repository in the sandbox.
	Script(task *milepost.Task, root string) string
	// Env is the environment of the script.
	Env(task *milepost.Task) map[string]string
	// Mounts are the task's own files that the script wants.
	Mounts(task *milepost.Task) []env.Mount
	// Report reads what a run left behind. Errors: KindInvalid for a task that cannot be judged test by test.
	Report(task *milepost.Task, e Evaluated) (milepost.ProbeStatus, milepost.TestReport, string, error)
}

// Evaluated is what a run of an evaluation left behind.
type Evaluated struct {
	Log      []byte
	TimedOut bool
	Memory   bool          // a process was killed for its memory
	TooLong  bool          // Log is not all of it
	Limit    time.Duration // that held
	Output   []byte        // content of Grading.Output; nil where the run left none
	Duration time.Duration
}

// ErrPrepare is wrapped by the errors of OpenImage where a command of Task.Prepare failed.
var ErrPrepare = errors.New("a command that prepares the repository failed")

// prepareBound is how long one command of Task.Prepare may take.
const prepareBound = 10 * time.Minute

// GitEnv lets git work on a tree that another user owns, and keeps the machine's configuration out. It is the environment
// of Task.Prepare, under that of the task's tests.
var GitEnv = map[string]string{
	"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8",
}

// OpenImage makes a sandbox on the repository as it lies in the task's image, .git and all, and runs Task.Prepare there.
// spec says the rest. It is for grading and for preparing tasks: an agent must not see the repository's history. Errors:
// KindInvalid where a command fails (ErrPrepare) or Workdir is not in the image, else as of env.Create.
func OpenImage(ctx context.Context, e *env.Env, task *milepost.Task, spec env.Spec) (*env.Sandbox, error) {
	spec.Image, spec.Workdir = task.Image, task.Workdir
	s, err := e.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := Prepare(ctx, s, task); err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Prepare runs the commands of Task.Prepare in the repository. Errors: KindInvalid where one fails (ErrPrepare).
func Prepare(ctx context.Context, s *env.Sandbox, task *milepost.Task) error {
	vars := maps.Clone(GitEnv)
	maps.Copy(vars, task.Test.Env)
	for i, c := range task.Prepare {
		r, err := s.Exec(ctx, env.Command{Argv: []string{"bash", "-c", c}, Env: vars, Limits: env.Limits{Wall: prepareBound}})
		if err != nil {
			return err
		}
		if r.ExitCode != 0 || r.TimedOut {
			return milepost.E("testrun: prepare repository", milepost.KindInvalid, "task %s, image %s: %w: command %d ended with %d: %.500s%.500s",
				task.ID, task.Image, ErrPrepare, i+1, r.ExitCode, r.Stdout, r.Stderr)
		}
	}
	return nil
}

// EvalShell runs a script that comes by standard input, with both streams in one and nothing to read.
var EvalShell = []string{"bash", "-c", `exec 2>&1; script=$(cat); exec </dev/null; eval "$script"`}

// evaluated runs the evaluation of the task's data set on the tree. A repository in an image is the image's own, with the
// .git that such scripts reset test files from; its files are proven to be the base's before the delta goes over them.
func (r *Runner) evaluated(ctx context.Context, task *milepost.Task, base *repo.Base, changes overlay) (out Outcome, err error) {
	spec := env.Spec{Name: "test " + task.ID, Image: task.Image, Limits: r.cfg.Limits, Mounts: r.evaluation.Mounts(task)}
	var s *env.Sandbox
	if task.Workdir == "" {
		spec.Base = base.Dir
		s, err = r.env.Create(ctx, spec)
	} else {
		s, err = OpenImage(ctx, r.env, task, spec)
	}
	if err != nil {
		return Outcome{}, err
	}
	defer func() {
		if closeErr := s.Close(context.WithoutCancel(ctx)); err == nil {
			err = closeErr
		}
	}()
	if task.Workdir != "" {
		if tree, err := s.Tree(ctx); err != nil {
			return Outcome{}, err
		} else if tree != base.Tree {
			return Outcome{}, milepost.E("testrun: open image", milepost.KindCorrupt, "task %s: the repository in image %s, prepared, has tree %s, not the base tree %s; prepare the task set again",
				task.ID, task.Image, tree, base.Tree)
		}
	}
	if err := writeDelta(ctx, s, base, changes.delta, changes.blobs(r.blobs)); err != nil {
		return Outcome{}, err
	}
	return r.evaluate(ctx, s, task)
}

func (r *Runner) evaluate(ctx context.Context, s *env.Sandbox, task *milepost.Task) (Outcome, error) {
	limits := r.cfg.Limits
	limits.Wall, limits.Output = r.timeout(task), maxTestLog
	res, err := s.Exec(ctx, env.Command{Argv: EvalShell, Stdin: []byte(r.evaluation.Script(task, s.Root())), Env: r.evaluation.Env(task), Limits: limits})
	if err != nil {
		return Outcome{}, err
	}
	e := Evaluated{Log: res.Stdout, TimedOut: res.TimedOut, Memory: res.OutOfMemory, TooLong: res.StdoutTruncated, Limit: limits.Wall, Duration: res.Duration}
	if task.Grading.Output != "" {
		if e.Output, err = ReadOutput(ctx, s, task.Grading.Output); err != nil {
			return Outcome{}, err
		}
	}
	out := Outcome{Log: clip(res.Stdout, r.cfg.LogBytes)}
	out.Status, out.Report, out.Reason, err = r.evaluation.Report(task, e)
	if err != nil {
		return Outcome{}, fmt.Errorf("task %s: %w", task.ID, err)
	}
	return out, nil
}

// maxOutput bounds a file that an evaluation leaves, in bytes.
const maxOutput = 64 << 20

// ReadOutput returns the content of a file of the sandbox that an evaluation wrote, nil where there is none or it is too long.
func ReadOutput(ctx context.Context, s *env.Sandbox, name string) ([]byte, error) {
	r, err := s.Exec(ctx, env.Command{Argv: []string{"cat", "--", name}, Limits: env.Limits{Output: maxOutput}})
	if err != nil || r.ExitCode != 0 || r.StdoutTruncated {
		return nil, err
	}
	return append([]byte{}, r.Stdout...), nil
}
