package rollout

import (
	"context"
	"log/slog"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// Prober takes probe requests. Publish returns at once: nothing in the loop waits for tests. A request that could not
// be published is no failure of the episode; whoever fills the probes in publishes it again. The prober may keep the
// request; its slices are not changed afterwards.
type Prober interface {
	Publish(ctx context.Context, r milepost.ProbeRequest) error
}

// Deps is what a Runner works with.
type Deps struct {
	Env    *env.Env
	Bases  *repo.Store
	Blobs  *repo.Blobs
	Model  Model
	Prober Prober       // nil = no probing: steps and outcome get no probe
	Clock  Clock        // nil = the real time
	Log    *slog.Logger // nil = none; gets what does not change an episode: failed publishes and clean-ups
}

// Request names one episode to run.
type Request struct {
	Episode string // id, unique in the run
	Group   string // the dispatch it belongs to
	Task    *milepost.Task
	Attempt int // index within the group
	Retry   int
	Seed    int64
}

// Runner runs episodes.
//
// Invariants: it is immutable, so Run may be called from many goroutines; an episode lives in the goroutine of its Run
// and in one sandbox of its own, and when Run returns the sandbox is closed and nothing of the episode runs any more.
type Runner struct {
	cfg    Config
	deps   Deps
	tools  *tools.Set
	format toolcall.Format
}

// New validates the configuration and the parts. KindInvalid names the field.
func New(cfg Config, deps Deps) (*Runner, error) {
	const op = "rollout: new"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for name, missing := range map[string]bool{"Env": deps.Env == nil, "Bases": deps.Bases == nil, "Blobs": deps.Blobs == nil, "Model": deps.Model == nil} {
		if missing {
			return nil, milepost.E(op, milepost.KindInvalid, "Deps.%s is missing", name)
		}
	}
	if deps.Clock == nil {
		deps.Clock = SystemClock{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	set, err := tools.New(cfg.Scaffold, cfg.Tools)
	if err != nil {
		return nil, err
	}
	format, err := toolcall.New(cfg.ToolFormat, set.Specs())
	if err != nil {
		return nil, err
	}
	return &Runner{cfg: cfg, deps: deps, tools: set, format: format}, nil
}

// Run runs one episode to its end and returns it, however it ended: submitted, at a limit, cancelled, or with an
// infrastructure failure (status infra_error, Error says what failed), a panic among them. On completed and limit it has
// published the verdict request of the final tree. Reward and probe results are filled in later.
//
// The error is only for misuse, a request or task that cannot be run at all (KindInvalid, KindNotFound, KindDenied); there is no
// episode then.
func (r *Runner) Run(ctx context.Context, req Request) (*milepost.Episode, error) {
	const op = "rollout: run"
	switch {
	case req.Episode == "":
		return nil, milepost.E(op, milepost.KindInvalid, "Request.Episode is empty")
	case req.Task == nil:
		return nil, milepost.E(op, milepost.KindInvalid, "Request.Task is missing")
	}
	l := newLoop(r, req)
	stop, err := l.guarded(ctx, l.play)
	if l.conv == nil && isMisuse(err) {
		return nil, err
	}
	if err := l.finish(ctx, stop, err); err != nil {
		l.fail(err)
	}
	return l.out, nil
}

// isMisuse, of an error before the first turn, tells a task that cannot be run from a failure while running it.
func isMisuse(err error) bool {
	switch milepost.KindOf(err) {
	case milepost.KindInvalid, milepost.KindNotFound, milepost.KindDenied:
		return true
	}
	return false
}
