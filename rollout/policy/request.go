package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// Do carries fn out, which samples nothing, at an endpoint in whatever state, the session's own if it can, and tries again
// elsewhere with back-off where it fails by the endpoint's fault (KindUnavailable, KindCorrupt). It returns the address of
// the endpoint that answered. Where no attempt succeeds the error is KindUnavailable and names each endpoint with its last
// error.
func (p *Pool) Do(ctx context.Context, session string, fn func(context.Context, *vllm.Client) error) (string, error) {
	return p.attempts(ctx, session, false, func(ctx context.Context, at *place) error { return fn(ctx, at.client) })
}

// Sample is Do for what samples tokens: it waits for an open endpoint, and the generation it returns holds tokens only of
// versions to which the canary of their endpoint agreed. Where that cannot come true any more fn is carried out again, maybe
// before its last call was heard to the end. Salt names endpoint's weights and term: requests of equal salts may share cached
// keys and values.
func (p *Pool) Sample(ctx context.Context, session string, fn func(ctx context.Context, c *vllm.Client, salt string) (*vllm.Generation, error)) (*vllm.Generation, string, error) {
	var g *vllm.Generation
	url, err := p.attempts(ctx, session, true, func(ctx context.Context, at *place) (err error) {
		if g, err = fn(ctx, at.client, at.salt); err != nil || len(g.Versions) == 0 {
			return err
		}
		return p.hold(ctx, at, slices.Min(g.Versions), g.Newest)
	})
	if err != nil {
		return nil, url, err
	}
	return g, url, nil
}

// salt is equal where weights and term are. A pool and its mirrors agree on it, since both are in the snapshot.
func (e *endpoint) salt() string { return fmt.Sprintf("%s-%x", vllm.FormatVersion(e.Approved), e.Term) }

// errVoid says that the answer, whole or not, may not be used: the endpoint went, or its term ended. It is no failed attempt.
var errVoid = errors.New("the endpoint is gone or not trusted any more")

// attempts is the loop behind Do and Sample.
func (p *Pool) attempts(ctx context.Context, session string, samples bool, fn func(context.Context, *place) error) (string, error) {
	var avoid *endpoint
	for attempt := 0; ; {
		at := &place{session: session, samples: samples, avoid: avoid}
		err := p.acquire(ctx, at)
		switch {
		case err == nil:
			err = p.try(ctx, at, fn)
			p.release(at, err)
			void := errors.Is(err, errVoid)
			if !void && !retriable(err) {
				return at.e.URL, err
			}
			p.count(samples)
			if avoid = at.e; void {
				continue // whoever ends a term places the request anew: there is nothing to back off from
			}
		case errors.Is(err, errNoneYet):
			attempt-- // the wait for the one that comes is no attempt
		case !errors.Is(err, errNoEndpoint):
			return "", err
		}
		if attempt == p.cfg.Retries {
			return "", p.exhausted(attempt + 1)
		}
		if err := p.clock.Sleep(ctx, p.cfg.Backoff.Wait(max(attempt, 0), p.rand())); err != nil {
			return "", ended("policy: request", err)
		}
		attempt++
	}
}

func (p *Pool) count(samples bool) {
	if !samples {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.totals.Rerun++
}

func retriable(err error) bool {
	k := milepost.KindOf(err)
	return k == milepost.KindUnavailable || k == milepost.KindCorrupt
}

// ended wraps the end of a context as KindTimeout or KindCanceled.
func ended(op string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return milepost.E(op, milepost.KindTimeout, "%w", err)
	}
	return milepost.Wrap(op, milepost.KindCanceled, err)
}

// try bounds one attempt by the time-out and by the place's life, and tells their ends from the caller's.
func (p *Pool) try(ctx context.Context, at *place, fn func(context.Context, *place) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	defer context.AfterFunc(at.life, cancel)()
	err := fn(bounded, at)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended("policy: request", ctx.Err())
	case at.life.Err() != nil:
		return errVoid
	case milepost.KindOf(err) == milepost.KindTimeout:
		return milepost.E("policy: request", milepost.KindUnavailable, "%s: no answer within %v", at.e.URL, p.cfg.Timeout)
	}
	return err
}

func (p *Pool) exhausted(attempts int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, e := range p.endpoints {
		last := "no error yet"
		if e.last != nil {
			last = e.last.Error()
		}
		fmt.Fprintf(&b, "\n  %s (%s, circuit %s): %s", e.URL, e.State, e.circuit(p.clock.Now(), p.cfg.OpenAfter), last)
	}
	return milepost.E("policy: request", milepost.KindUnavailable, "no endpoint is left after %d attempts:%s", attempts, b.String())
}
