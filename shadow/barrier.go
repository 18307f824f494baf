package shadow

import (
	"context"
	"fmt"
	"time"

	"github.com/milepost-rl/milepost"
)

// Await waits until the probes of the given ids are final, at most bound. What is not back then is late: untrusted, its
// continuity kept, for this barrier only; the result goes to the cache when it comes. An id that was never published in
// this epoch is an infra probe that says so. Cancelling ctx ends the wait as the bound does. The map has one probe of its
// own for each id.
func (p *Prober) Await(ctx context.Context, ids []string, bound time.Duration) map[string]*milepost.Probe {
	out, late := p.await(ctx, ids, bound)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.book.stats.Late += late
	return out
}

// await returns the probes, and how many of them are late. What is final is decided at one moment for all ids, so that the
// steps of a merge group are either all late or none.
func (p *Prober) await(ctx context.Context, ids []string, bound time.Duration) (out map[string]*milepost.Probe, late int) {
	p.mu.Lock()
	entries := make([]*entry, len(ids))
	for i, id := range ids {
		entries[i] = p.book.entries[id]
	}
	p.mu.Unlock()
	p.waitFor(ctx, entries, bound)
	out = make(map[string]*milepost.Probe, len(ids))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range entries {
		switch {
		case e == nil:
			out[ids[i]] = &milepost.Probe{ID: ids[i], Status: milepost.ProbeInfra, Continuity: milepost.ContinuityKept, Reason: "never published in this epoch"}
		case e.probe != nil:
			probe := *e.probe
			out[e.id] = &probe
		default:
			late++
			out[e.id] = &milepost.Probe{ID: e.id, Status: milepost.ProbeLate, Continuity: milepost.ContinuityKept, Merge: e.flight.mergeOf(e),
				Reason: fmt.Sprintf("not back within the barrier's bound of %s", bound)}
		}
	}
	return out, late
}

// waitFor returns when all entries are final, bound has passed, ctx has ended or the prober has stopped.
func (p *Prober) waitFor(ctx context.Context, entries []*entry, bound time.Duration) {
	if bound <= 0 {
		return
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for _, e := range entries {
		if e == nil {
			continue
		}
		select {
		case <-e.done:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// Baseline returns the probe of the task's untouched tree, run for this run (or cached by it), and waits for it as long as
// ctx lives. A baseline that is not trusted is returned as it is, and run again when it is asked for again. Errors:
// KindInvalid, KindCanceled, KindTimeout when ctx's deadline passed, KindConflict when a newer epoch took over.
func (p *Prober) Baseline(ctx context.Context, task *milepost.Task) (*milepost.Probe, error) {
	const op = "shadow: baseline"
	if task == nil {
		return nil, milepost.E(op, milepost.KindInvalid, "no task")
	}
	id := task.ID + "/baseline"
	p.mu.Lock()
	if e := p.book.entries[id]; e != nil && e.probe != nil && !e.probe.Trusted {
		p.book.drop(e)
	}
	err := p.publish(milepost.ProbeRequest{ID: id, Kind: milepost.ProbeBaseline, Task: task, Tree: task.BaseTree}, true)
	e := p.book.entries[id]
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
		probe := *e.probe
		return &probe, nil
	case <-ctx.Done():
		kind := milepost.KindCanceled
		if ctx.Err() == context.DeadlineExceeded {
			kind = milepost.KindTimeout
		}
		return nil, milepost.E(op, kind, "task %s: %w", task.ID, ctx.Err())
	case <-p.ctx.Done():
		return nil, p.Err()
	}
}

// wanted is one place of an episode that a probe goes to.
type wanted struct {
	req milepost.ProbeRequest
	to  **milepost.Probe
}

// Fill is the finalising barrier of a batch: it fills, in place and waiting at most bound, Step.Probe where it is pending
// (it has an id and no status) and Outcome.Verdict where it is missing or pending. Probes that are final stay as they
// are, so that a journaled episode can be filled again without harm; a step without a probe asks for none. What this epoch never published (a resumed run, a
// full backlog) is published now from Step.Delta and FinalDelta. Episodes that end in infra_error or cancelled get
// status cancelled and are waited for by nobody. Afterwards the episodes are forgotten.
//
// When ctx is cancelled nothing is filled. Errors: KindInvalid for an episode whose task is unknown, KindCanceled,
// KindConflict when a newer epoch took over.
func (p *Prober) Fill(ctx context.Context, episodes []*milepost.Episode, bound time.Duration) error {
	const op = "shadow: fill"
	var all []wanted
	for _, ep := range episodes {
		if ep.Status == milepost.EpisodeInfra || ep.Status == milepost.EpisodeCancelled {
			p.Cancel(ep.ID)
			cancelPending(ep)
			continue
		}
		w, err := p.wants(ep)
		if err != nil {
			return err
		}
		all = append(all, w...)
	}
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = all[i].req.ID
		if err := p.republish(all[i].req); err != nil {
			return err
		}
	}
	began := p.opts.now()
	probes, late := p.await(ctx, ids, bound)
	waited := p.opts.now().Sub(began)
	if err := ctx.Err(); err != nil {
		return milepost.Wrap(op, milepost.KindCanceled, err)
	}
	if err := p.Err(); err != nil {
		return err
	}
	for _, w := range all {
		*w.to = probes[w.req.ID]
	}
	p.mu.Lock()
	p.book.stats.Late += late
	p.book.stats.BarrierWait += waited
	var unwanted []*flight
	for _, ep := range episodes {
		unwanted = append(unwanted, p.book.release(ep.ID)...)
	}
	p.mu.Unlock()
	p.deleteMessages(unwanted)
	return nil
}

// cancelPending marks the pending probes of an episode that nobody will grade.
func cancelPending(ep *milepost.Episode) {
	mark := func(to **milepost.Probe) {
		if *to != nil && (*to).Status == "" {
			*to = &milepost.Probe{ID: (*to).ID, Status: milepost.ProbeCancelled, Continuity: milepost.ContinuityKept, Reason: "episode " + string(ep.Status)}
		}
	}
	for i := range ep.Steps {
		mark(&ep.Steps[i].Probe)
	}
	mark(&ep.Outcome.Verdict)
}

// wants lists the probes that ep lacks.
func (p *Prober) wants(ep *milepost.Episode) ([]wanted, error) {
	var out []wanted
	for i := range ep.Steps {
		s := &ep.Steps[i]
		if s.Probe == nil || s.Probe.Status != "" {
			continue
		}
		if p.cfg.Mode == ModeOff {
			s.Probe = nil
			continue
		}
		out = append(out, wanted{milepost.ProbeRequest{ID: fmt.Sprintf("%s/%d", ep.ID, s.Index), Kind: milepost.ProbeStep,
			Episode: ep.ID, Step: s.Index, Tree: s.Tree, Delta: s.Delta}, &s.Probe})
	}
	if v := ep.Outcome.Verdict; v == nil || v.Status == "" {
		out = append(out, wanted{milepost.ProbeRequest{ID: ep.ID + "/verdict", Kind: milepost.ProbeVerdict, Episode: ep.ID,
			Step: len(ep.Steps), Tree: ep.FinalTree, Delta: ep.FinalDelta}, &ep.Outcome.Verdict})
	}
	if len(out) == 0 {
		return nil, nil
	}
	task, err := p.task(ep.Task)
	if err != nil {
		return nil, milepost.E("shadow: fill", milepost.KindInvalid, "episode %s: %w", ep.ID, err)
	}
	for i := range out {
		out[i].req.Task = task
	}
	return out, nil
}

// task is a task of the run by its id. Errors: KindInvalid.
func (p *Prober) task(id string) (*milepost.Task, error) {
	p.mu.Lock()
	t := p.tasks[id]
	p.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if p.opts.tasks == nil {
		return nil, milepost.E("shadow: task", milepost.KindInvalid, "task %q was never published in this epoch and no task list was given", id)
	}
	t, err := p.opts.tasks(id)
	if err != nil {
		return nil, milepost.E("shadow: task", milepost.KindInvalid, "task %q: %w", id, err)
	}
	return t, nil
}

// republish publishes r unless this epoch knows it for the same tree.
func (p *Prober) republish(r milepost.ProbeRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.book.entries[r.ID]; e != nil && e.tree == r.Tree {
		return nil
	}
	if err := p.publish(r, true); err != nil {
		return err
	}
	p.book.stats.Republished++
	return nil
}
