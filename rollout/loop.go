package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// errWall is the cause with which an episode's time ends.
var errWall = errors.New("the episode's wall time is over")

// loop is one episode under way.
type loop struct {
	*Runner
	req     Request
	out     *milepost.Episode
	started time.Time

	box     *env.Sandbox
	repo    *repository
	conv    Conversation
	session *tools.Session
	read    map[string]bool // files read so far
	tokens  int             // sampled so far
}

func newLoop(r *Runner, req Request) *loop {
	l := &loop{Runner: r, req: req, started: r.deps.Clock.Now(), read: map[string]bool{}}
	l.out = &milepost.Episode{
		ID: req.Episode, Group: req.Group, Task: req.Task.ID, Attempt: req.Attempt, Retry: req.Retry,
		Started: l.started, FinalTree: req.Task.BaseTree,
	}
	return l
}

// play is the episode: model call, tool call, observation, until something ends it. caller is the context of Run; the
// model and the tools work under one that ends with the wall time too, while a look at the repository does not.
func (l *loop) play(caller context.Context) (milepost.StopReason, error) {
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	defer l.deps.Clock.AfterFunc(l.cfg.Wall, func() { cancel(errWall) })()

	defer l.closeSandbox()
	if err := l.openSandbox(ctx); err != nil {
		return broke(caller, err)
	}
	defer l.closeConversation()
	if err := l.openConversation(ctx); err != nil {
		return l.ended(ctx, err)
	}
	for {
		began := l.deps.Clock.Now()
		turn, err := l.conv.Next(ctx)
		if err != nil {
			return l.ended(ctx, err)
		}
		step := l.begin(turn, l.deps.Clock.Now().Sub(began))
		answer, submitted, err := l.act(caller, ctx, turn, step)
		l.end(caller, step)
		if err != nil {
			return broke(caller, err)
		}
		if submitted {
			return milepost.StopSubmit, nil
		}
		if stop := l.spent(ctx); stop != "" {
			return stop, nil
		}
		if err := l.conv.Observe(ctx, answer); err != nil {
			return l.ended(ctx, err)
		}
	}
}

func (l *loop) openSandbox(ctx context.Context) error {
	base, err := l.deps.Bases.Base(ctx, l.req.Task)
	if err != nil {
		return err
	}
	l.box, err = l.deps.Env.Create(ctx, env.Spec{
		Name: l.req.Episode, Base: base.Dir, Image: l.req.Task.Image, Workdir: l.req.Task.Workdir, Hidden: hiddenPaths(l.req.Task),
		Env: l.req.Task.Test.Env, Limits: l.cfg.Sandbox})
	if err != nil {
		return err
	}
	l.repo = newRepository(base, l.deps.Blobs, l.box)
	l.session = &tools.Session{Workspace: l.box, Repo: l.repo, Root: l.box.Root()}
	return nil
}

// hiddenPaths are the places of the image that the agent must not see.
func hiddenPaths(t *milepost.Task) []string {
	if t.Grading == nil || t.Workdir == "" {
		return nil
	}
	return t.Grading.Hidden
}

func (l *loop) closeSandbox() {
	if l.box == nil {
		return
	}
	if err := l.box.Close(context.Background()); err != nil {
		l.deps.Log.Warn("closing the sandbox", "episode", l.req.Episode, "error", err)
	}
}

func (l *loop) openConversation(ctx context.Context) (err error) {
	l.conv, err = l.deps.Model.Open(ctx, l.opening(l.req, l.box.Root()))
	if err != nil {
		l.conv = nil // a typed nil would not be
	}
	return err
}

// closeConversation takes the samples out first.
func (l *loop) closeConversation() {
	if l.conv == nil {
		return
	}
	l.out.Samples = l.conv.Samples()
	if e, ok := l.conv.(Endpointer); ok {
		l.out.Endpoint = e.Endpoint()
	}
	if err := l.conv.Close(); err != nil {
		l.deps.Log.Warn("closing the conversation", "episode", l.req.Episode, "error", err)
	}
}

// ended says what an error of the conversation means. ctx is the one that ends with the wall time.
func (l *loop) ended(ctx context.Context, err error) (milepost.StopReason, error) {
	switch {
	case ctx.Err() != nil:
		return l.spent(ctx), nil
	case milepost.KindOf(err) == milepost.KindLimit:
		return milepost.StopContext, nil
	}
	return milepost.StopError, err
}

// broke says what an error of the sandbox means: the caller gave up, or the infrastructure failed.
func broke(caller context.Context, err error) (milepost.StopReason, error) {
	if caller.Err() != nil {
		return milepost.StopCanceled, nil
	}
	return milepost.StopError, err
}

// spent says which limit the episode has reached, "" for none.
func (l *loop) spent(ctx context.Context) milepost.StopReason {
	switch {
	case context.Cause(ctx) == errWall:
		return milepost.StopWall
	case ctx.Err() != nil:
		return milepost.StopCanceled
	case l.deps.Clock.Now().Sub(l.started) >= l.cfg.Wall:
		return milepost.StopWall
	case len(l.out.Steps) >= l.cfg.MaxTurns:
		return milepost.StopTurns
	case l.cfg.MaxTokens > 0 && l.tokens >= l.cfg.MaxTokens:
		return milepost.StopTokens
	}
	return ""
}

// state is the key of the state the episode is in.
func (l *loop) state() string { return StateKey(l.tree(), slices.Collect(maps.Keys(l.read))) }

func (l *loop) tree() string {
	if l.repo == nil {
		return l.req.Task.BaseTree
	}
	return l.repo.now.tree
}

// begin makes the step of a turn, in the state before its action.
func (l *loop) begin(turn Turn, took time.Duration) *milepost.Step {
	l.tokens += turn.Tokens
	return &milepost.Step{
		Index: len(l.out.Steps), State: l.state(), Tree: l.tree(), ModelTime: took,
		Sample: turn.Sample, TokenStart: turn.TokenStart, TokenEnd: turn.TokenEnd,
		Action: milepost.Action{Text: validText(turn.Text)},
	}
}

// end puts the step on record, and asks for its probe where it changed the tree.
func (l *loop) end(ctx context.Context, step *milepost.Step) {
	if step.Tree != l.lastTree() {
		step.Delta = l.repo.now.delta
		if l.cfg.ProbeSteps {
			step.Probe = l.publish(ctx, milepost.ProbeStep, strconv.Itoa(step.Index), step.Index)
		}
	}
	for _, e := range step.Exposures {
		if e.Level == milepost.ExposureRead && e.Confidence == "high" {
			l.read[e.Path] = true
		}
	}
	l.out.Steps = append(l.out.Steps, *step)
}

// lastTree is the tree after the last step on record.
func (l *loop) lastTree() string {
	if n := len(l.out.Steps); n > 0 {
		return l.out.Steps[n-1].Tree
	}
	return l.req.Task.BaseTree
}

// publish asks for a probe of the repository as it is and returns the pending probe; nil without a prober.
func (l *loop) publish(ctx context.Context, kind milepost.ProbeKind, name string, step int) *milepost.Probe {
	if l.deps.Prober == nil {
		return nil
	}
	probe := &milepost.Probe{ID: l.req.Episode + "/" + name}
	err := l.deps.Prober.Publish(ctx, milepost.ProbeRequest{
		ID: probe.ID, Kind: kind, Task: l.req.Task, Episode: l.req.Episode, Step: step, Tree: l.repo.now.tree, Delta: l.repo.now.delta})
	if err != nil {
		probe.Reason = "not published: " + err.Error()
		l.deps.Log.Warn("publishing a probe", "probe", probe.ID, "error", err)
	}
	return probe
}

// guarded runs part of the episode and turns a panic into an error of it.
func (l *loop) guarded(ctx context.Context, part func(context.Context) (milepost.StopReason, error)) (stop milepost.StopReason, err error) {
	defer func() {
		if p := recover(); p != nil {
			l.deps.Log.Error("panic in an episode", "episode", l.req.Episode, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			stop, err = milepost.StopError, milepost.E("rollout: run", milepost.KindInternal, "panic: %v", p)
		}
	}()
	return part(ctx)
}
