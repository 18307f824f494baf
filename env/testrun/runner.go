package testrun

import (
	"context"
	"slices"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testlog"
)

// Outcome is how a run ended. Infrastructure failure is not an outcome but an error.
type Outcome struct {
	Status ProbeStatus // completed, timeout, memory, tree or unparsed
	Report milepost.TestReport
	Tree   string        // the id that was proven; "" with status tree
	Extra  []string      // reported tests that the task does not list, sorted; always empty for a resident run
	Log    []byte        // what the run printed, cut to Config.LogBytes: its beginning and its end
	Ran    time.Duration // rebuilding the tree and running the tests
	Reason string        // in words, where the status is not completed or the tests ended early
}

// ProbeStatus is the root package's.
type ProbeStatus = milepost.ProbeStatus

// Runner runs tests. It may be used concurrently.
//
// Invariants: a run's copy of the tree is made for it and removed after it. Every run of a closed Runner fails, and Close
// returns after the last one has ended.
type Runner struct {
	cfg   Config
	env   *env.Env
	store *repo.Store
	blobs repo.BlobGetter
	pool  *pool

	evaluation Evaluation // nil: tasks that a data set judges are refused

	closing context.Context
	cancel  context.CancelFunc
}

// Option changes what a Runner can do.
type Option func(*Runner)

// WithEvaluation lets the Runner run tasks that their data set's evaluation judges.
func WithEvaluation(e Evaluation) Option { return func(r *Runner) { r.evaluation = e } }

// New returns a Runner of a valid configuration on the environment, the store of base checkouts and the blobs of
// changed files, all of which stay the caller's.
func New(cfg Config, e *env.Env, store *repo.Store, blobs repo.BlobGetter, opts ...Option) *Runner {
	r := &Runner{cfg: cfg, env: e, store: store, blobs: blobs}
	for _, o := range opts {
		o(r)
	}
	r.closing, r.cancel = context.WithCancel(context.Background())
	r.pool = newPool(&r.cfg, e)
	return r
}

// Close ends the runs under way (they return KindCanceled) and every resident process. It may be called again.
func (r *Runner) Close() error {
	r.cancel()
	return milepost.Wrap("testrun: close", milepost.KindUnavailable, r.pool.close())
}

// Run rebuilds the tree from the task's base and the delta, proves that its id is tree, and runs the task's tests on it.
// What the tests or the tested code do is in the Outcome; so is a tree with another id (status tree). Errors:
// KindInvalid for a malformed task or delta, KindNotFound where the repository or a blob is not to be had, KindCorrupt,
// KindUnavailable, KindCanceled.
func (r *Runner) Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (Outcome, error) {
	const op = "testrun: run"
	begin := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.closing, cancel)()
	run, err := r.how(op, task)
	if err != nil {
		return Outcome{}, err
	}
	base, err := r.store.Base(ctx, task)
	if err != nil {
		return Outcome{}, err
	}
	if err := base.Prove(delta, tree); milepost.KindOf(err) == milepost.KindConflict {
		return Outcome{Status: milepost.ProbeTreeWrong, Reason: err.Error(), Ran: time.Since(begin)}, nil
	} else if err != nil {
		return Outcome{}, err
	}
	out, err := run(ctx, task, base, withHidden(base, delta, task.Test.Hidden))
	if ctx.Err() != nil {
		return Outcome{}, milepost.Wrap(op, milepost.KindCanceled, context.Canceled)
	}
	if err != nil {
		return Outcome{}, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	out.Tree, out.Ran = tree, time.Since(begin)
	return out, nil
}

// how says what runs the task, after a look at what that needs.
func (r *Runner) how(op string, task *milepost.Task) (func(context.Context, *milepost.Task, *repo.Base, overlay) (Outcome, error), error) {
	switch {
	case task.Workdir != "" && task.BaseTree == "":
		return nil, milepost.E(op, milepost.KindInvalid, "task %s: its repository lies in image %s and was not taken from there yet; run milepost tasks prepare on its set", task.ID, task.Image)
	case task.Grading != nil && (r.evaluation == nil || r.evaluation.Judges(task)):
		if r.evaluation == nil {
			return nil, milepost.E(op, milepost.KindInvalid, "task %s: its data set judges it (grading), which this runner does not know", task.ID)
		}
		return r.evaluated, nil
	}
	if err := checkTask(op, task); err != nil {
		return nil, err
	}
	if r.cfg.Resident && task.Test.Resident != "" {
		return r.resident, nil
	}
	return r.fresh, nil
}

func checkTask(op string, task *milepost.Task) error {
	t := &task.Test
	switch {
	case len(t.Argv) == 0:
		return milepost.E(op, milepost.KindInvalid, "task %s: test.argv is empty", task.ID)
	case !slices.Contains(testlog.Formats(), t.Format):
		return milepost.E(op, milepost.KindInvalid, "task %s: test.format %q is not one of %v", task.ID, t.Format, testlog.Formats())
	case t.Resident != "" && t.Resident != "unittest":
		return milepost.E(op, milepost.KindInvalid, "task %s: test.resident %q is not \"unittest\" or empty", task.ID, t.Resident)
	case t.Resident != "" && task.Workdir != "":
		return milepost.E(op, milepost.KindInvalid, "task %s: test.resident must be empty where workdir is set: the tests run at that place of the image", task.ID)
	case t.Timeout < 0:
		return milepost.E(op, milepost.KindInvalid, "task %s: test.timeout is %s; it must be positive, or 0 for the default", task.ID, t.Timeout)
	}
	if t.Resident != "" && unittestArgs(t.Argv) == nil {
		return milepost.E(op, milepost.KindInvalid, "task %s: test.argv %q is not of the form python3 -m unittest ..., as test.resident needs", task.ID, t.Argv)
	}
	return nil
}

func (r *Runner) timeout(task *milepost.Task) time.Duration {
	if task.Test.Timeout > 0 {
		return task.Test.Timeout
	}
	return r.cfg.Timeout
}

// clip keeps the beginning and the end of a log that is longer than max bytes.
func clip(log []byte, max int64) []byte {
	if int64(len(log)) <= max {
		return log
	}
	const gap = "\n[...]\n"
	if max < 2*int64(len(gap)) {
		return log[:max]
	}
	head := (max - int64(len(gap))) / 2
	return slices.Concat(log[:head], []byte(gap), log[int64(len(log))-(max-int64(len(gap))-head):])
}
