package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// Runner carries out the machine's commands and journals what comes of them.
//
// Invariants: one goroutine (Run's) owns the machine and the batches; every other goroutine only sends completions to
// it. An event is journaled before the machine sees it. A command that fails stops the run, which can then be resumed:
// the command is still outstanding. An episode that ends because the run is stopping is not journaled, so it is run
// again; one that ends because the machine cancelled it is, with status cancelled. A judged group is on disk, with
// probes, baseline and credit, before its event is journaled. No goroutine outlives Run.
type Runner struct {
	cfg     Config
	folder  *Folder
	deps    Deps
	engine  *credit.Engine
	tasks   map[string]*milepost.Task
	machine *Machine
	journal *journal.Journal
	metrics *metricsLog

	started time.Time
	active0 float64 // active seconds of earlier epochs
	phaseAt time.Time

	batches map[string]*batch // under way, by name

	cancels     map[string]context.CancelCauseFunc // of the commands under way, by key; the loop's own
	completions chan completion
	slots       chan struct{}
	wg          sync.WaitGroup
	learner     sync.Mutex // the trainer takes one call at a time
	stopReason  string
}

// completion is what a command's goroutine sends to the loop.
type completion struct {
	command Command
	event   Event
	episode *milepost.Episode
	judged  []EpisodeRecord // of a judged group
	status  Status          // Line and Metrics to report, if any
	err     error
}

// NewRunner prepares a run in folder: it opens the journal and brings the machine to where the journal ends.
func NewRunner(cfg Config, folder *Folder, seed uint64, split Tasks, tasks []*milepost.Task, engine *credit.Engine, deps Deps) (*Runner, error) {
	m, err := NewMachine(cfg, split, seed)
	if err != nil {
		return nil, err
	}
	if err := checkValuer(engine, deps.Learner); err != nil {
		return nil, err
	}
	r := &Runner{
		cfg: cfg, folder: folder, deps: deps, engine: engine, machine: m,
		batches: map[string]*batch{}, tasks: make(map[string]*milepost.Task, len(tasks)), completions: make(chan completion), cancels: map[string]context.CancelCauseFunc{},
		slots: make(chan struct{}, cfg.Concurrency), metrics: &metricsLog{folder: folder, now: deps.Now, told: deps.Recorded},
	}
	for _, t := range tasks {
		if r.tasks[t.ID] != nil {
			return nil, milepost.E("orchestrator: new", milepost.KindInvalid, "task id %s occurs twice", t.ID)
		}
		r.tasks[t.ID] = t
	}
	j, records, torn, err := journal.Open(folder.Path("journal.jsonl"), deps.Now)
	if err != nil {
		return nil, err
	}
	r.journal = j
	if torn > 0 {
		r.say(Status{Line: fmt.Sprintf("journal: cut off a torn last record of %d bytes", torn)})
	}
	for _, rec := range records {
		if err := r.replay(rec); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	if err := folder.writeTasks(tasks); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return r, nil
}

// replay feeds one journaled event to the machine; its commands are known as outstanding.
func (r *Runner) replay(rec journal.Record) error {
	var e Event
	if err := json.Unmarshal(rec.Data, &e); err != nil {
		return milepost.E("orchestrator: replay", milepost.KindCorrupt, "journal record %d: %v", rec.Seq, err)
	}
	cs, err := r.machine.Step(e)
	if err != nil {
		return milepost.E("orchestrator: replay", milepost.KindCorrupt, "journal record %d: %v", rec.Seq, err)
	}
	for _, c := range cs {
		if c.Type == CommandStop {
			r.stopReason = c.Reason
		}
	}
	r.active0 = e.Active
	return nil
}

// Machine gives read access to the state; only safe while Run is not running.
func (r *Runner) Machine() *Machine { return r.machine }

// StopReason says by which rule a finished run ended.
func (r *Runner) StopReason() string { return r.stopReason }

// Close releases the journal and the event file of the metrics.
func (r *Runner) Close() error { return errors.Join(r.journal.Close(), r.metrics.close()) }

// Run carries the run to its end, or to ctx's end or the first failure, after which it can be resumed.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		r.wg.Wait()
		for name, b := range r.batches {
			b.part.close()
			delete(r.batches, name)
		}
	}()
	r.started = r.deps.Now()
	r.phaseAt = r.started
	if r.machine.Phase() == PhaseDone {
		return r.writeResult()
	}
	if err := r.restore(ctx); err != nil {
		return err
	}
	todo := r.machine.Outstanding()
	cs, err := r.apply(Event{Type: EventStarted, Epoch: r.machine.Epoch() + 1})
	if err != nil {
		return err
	}
	if err := r.carryOut(ctx, append(todo, cs...)); err != nil {
		return err
	}
	for r.machine.Phase() != PhaseDone {
		var c completion
		select {
		case <-ctx.Done():
			return milepost.Wrap("orchestrator: run", milepost.KindCanceled, context.Cause(ctx))
		case c = <-r.completions:
		}
		if err := r.complete(ctx, c); err != nil {
			return err
		}
	}
	return r.writeResult()
}

// complete journals what a command came to and starts what follows.
func (r *Runner) complete(ctx context.Context, c completion) error {
	if c.err != nil {
		return c.err
	}
	r.release(c.command.Key())
	if c.episode != nil {
		if err := r.outage(c); err != nil {
			return err
		}
	}
	if err := r.keep(c); err != nil {
		return err
	}
	cs, err := r.apply(c.event)
	if err != nil {
		return err
	}
	if err := r.closeBatch(c.command); err != nil {
		return err
	}
	if c.event.Type == EventPushed {
		best, _ := r.machine.Best()
		if _, err := r.folder.Collect(r.cfg.Retention, best, r.machine.Version()); err != nil {
			return err
		}
	}
	r.say(c.status)
	return r.carryOut(ctx, cs)
}

// apply journals an event and steps the machine.
func (r *Runner) apply(e Event) ([]Command, error) {
	e.Active = r.active0 + r.deps.Now().Sub(r.started).Seconds()
	if _, err := r.journal.Append(string(e.Type), e); err != nil {
		return nil, err
	}
	old := r.machine.Phase()
	cs, err := r.machine.Step(e)
	if r.machine.Phase() != old {
		r.phaseAt = r.deps.Now()
	}
	return cs, err
}

// carryOut starts a goroutine for each command.
func (r *Runner) carryOut(ctx context.Context, cs []Command) error {
	if err := r.openBatches(cs); err != nil {
		return err
	}
	for _, c := range cs {
		switch c.Type {
		case CommandStop:
			r.stopReason = c.Reason
			continue
		case CommandCancel:
			r.cancel(c.Keys)
			continue
		}
		g, err := r.give(c)
		if err != nil {
			return err
		}
		own := r.hold(ctx, c)
		r.wg.Add(1)
		go func() {
			defer r.wg.Done()
			done := r.do(own, c, g)
			done.command = c
			select {
			case r.completions <- done:
			case <-ctx.Done():
			}
		}()
	}
	return nil
}

// do carries out one command under a context of its own; it runs in a goroutine of its own. g is what it works on.
func (r *Runner) do(ctx context.Context, c Command, g given) completion {
	switch c.Type {
	case CommandEpisode:
		return r.runEpisode(ctx, c.Episode)
	case CommandJudge:
		return r.runJudge(ctx, c, g.episodes())
	case CommandEvaluate:
		return r.runEvaluate(ctx, c, g.episodes())
	case CommandFinalise:
		return r.runFinalise(ctx, c, g)
	case CommandTrain:
		return r.runTrain(ctx, c)
	case CommandClose:
		return r.runClose(c, g)
	case CommandPush:
		return r.runPush(ctx, c.Version, c.Load)
	}
	return completion{err: milepost.E("orchestrator: run", milepost.KindInternal, "command %q is unknown", c.Type)}
}

// say tells the watcher where the run is.
func (r *Runner) say(s Status) {
	if r.deps.Report == nil {
		return
	}
	m := r.machine
	s.Phase, s.Update, s.MaxUpdates, s.Version = m.Phase(), m.Update(), r.cfg.MaxUpdates, m.Version()
	s.Done, s.Total = m.Progress()
	if !r.phaseAt.IsZero() {
		s.Since = r.deps.Now().Sub(r.phaseAt)
	}
	r.deps.Report(s)
}
