package evaluate

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	milepost "github.com/milepost-rl/milepost"
)

// Runner makes the attempts of a plan that a journal lacks.
//
// Invariants: an attempt is made by one goroutine at a time, and never again once the journal has it. What infrastructure
// lost is tried again after all others of the round, so that an outage may pass, at most Retries times. Nothing of an
// attempt is held after it ended but its id.
type Runner struct {
	Journal     *Journal
	Concurrency int // attempts at the same time, 1 or more
	Retries     int // further tries of an attempt that infrastructure lost
	GiveUp      int // losses in a row that end everything; 0 = never

	// Try makes one attempt to its grade. It returns a record, or a loss where infrastructure failed, or an error that ends
	// everything: misuse, a model that does not exist, cancellation.
	Try  func(ctx context.Context, a Attempt, retry int) (*Record, *Loss, error)
	Done func(done, total int) // told of each attempt that has a record, from one goroutine at a time; may be nil

	mu     sync.Mutex
	done   int
	inARow int
	lost   []Attempt // of this round
}

// Run makes what is missing. Attempts that infrastructure lost to the end are in the journal as losses, not in the error.
// Errors: what Try says, KindUnavailable after GiveUp losses in a row, KindCanceled; what was finished is kept in all.
func (r *Runner) Run(ctx context.Context, plan []Attempt) error {
	finished := map[string]bool{}
	for _, rec := range r.Journal.History().Records {
		finished[rec.ID] = true
	}
	r.done = 0
	var todo []Attempt
	for _, a := range plan {
		if finished[a.ID] {
			r.done++
			continue
		}
		todo = append(todo, a)
	}
	for retry := 0; len(todo) > 0 && retry <= r.Retries; retry++ {
		if err := r.round(ctx, todo, retry, len(plan)); err != nil {
			return err
		}
		todo, r.lost = r.lost, nil
	}
	return nil
}

// round tries each of the attempts once.
func (r *Runner) round(ctx context.Context, todo []Attempt, retry, total int) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.Concurrency)
	for _, a := range todo {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if gctx.Err() != nil {
				return nil
			}
			rec, loss, err := r.Try(gctx, a, retry)
			if err != nil {
				return err
			}
			return r.keep(a, rec, loss, retry, total)
		})
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return milepost.Wrap("evaluate: run", milepost.KindCanceled, context.Cause(ctx))
	}
	return err
}

// keep journals how a try ended.
func (r *Runner) keep(a Attempt, rec *Record, loss *Loss, retry, total int) error {
	if loss != nil {
		l := *loss
		l.ID, l.Retry = a.ID, retry
		if err := r.Journal.Loss(l); err != nil {
			return err
		}
		return r.count(a, &l)
	}
	rec.ID, rec.Task, rec.Attempt, rec.Retry = a.ID, a.Task.ID, a.Index, retry
	if err := r.Journal.Attempt(*rec); err != nil {
		return err
	}
	if err := r.count(a, nil); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	if r.Done != nil {
		r.Done(r.done, total)
	}
	return nil
}

// count watches for an outage.
func (r *Runner) count(a Attempt, loss *Loss) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if loss == nil {
		r.inARow = 0
		return nil
	}
	r.lost = append(r.lost, a)
	r.inARow++
	if r.GiveUp > 0 && r.inARow >= r.GiveUp {
		return milepost.E("evaluate: run", milepost.KindUnavailable, "infrastructure lost the last %d attempts (eval.give_up); the last, %s, to %s: %s", r.inARow, loss.ID, loss.Kind, loss.Reason)
	}
	return nil
}
