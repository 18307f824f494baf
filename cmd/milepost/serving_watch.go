package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// takeURLs takes the user's own servers. They stay members whatever becomes of them; while one fails, the pool's circuit keeps
// requests from it.
func (s *serving) takeURLs(urls []string) error {
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			return milepost.E("serve", milepost.KindInvalid, "server.urls[%d]: %s is listed twice", i, url)
		}
		r := &replica{name: url, url: url}
		s.replicas = append(s.replicas, r)
		s.ready(r)
	}
	s.work.Go(func() { s.watch(s.ctx) })
	return nil
}

// watch asks for the health of the replicas that this process did not start, and whether they still serve what they were
// pushed, until ctx ends.
func (s *serving) watch(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Policy.Pool.HealthEvery)
	defer tick.Stop()
	for {
		var urls []string
		for r, url := range s.foreign() {
			urls = append(urls, url)
			s.checkVersion(ctx, r, url)
		}
		s.pool.Check(ctx, urls)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// foreign are the replicas that are up and were not started here, with their addresses.
func (s *serving) foreign() map[*replica]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[*replica]string{}
	for _, r := range s.replicas {
		if r.up && !r.started {
			out[r] = r.url
		}
	}
	return out
}

// checkVersion finds out whether a server was started anew behind the run's back, which its version, or the adapters that it
// has, tell: it then joins again.
func (s *serving) checkVersion(ctx context.Context, r *replica, url string) {
	s.mu.Lock()
	want, start := r.served, r.start
	s.mu.Unlock()
	if want == policy.NoVersion {
		return
	}
	client, err := vllm.New(vllm.Config{URL: url, Model: s.pool.Config().Model})
	if err != nil {
		return
	}
	defer client.CloseIdle()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Policy.Pool.HealthEvery)
	defer cancel()
	serves, what, err := s.stillServes(ctx, client, want)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !serves && r.served == want && r.start == start && r.up && !r.busy {
		s.say(fmt.Sprintf("%s serves %s, pushed was %d: it was started anew", s.label(r), what, want))
		s.expel(r)
		s.admit(r)
	}
}

// stillServes reports whether a server serves a version still, and what it does serve. A push of an adapter does not set the
// server's version, which is that of its base; the base, version 0, is always there.
func (s *serving) stillServes(ctx context.Context, client *vllm.Client, want int32) (serves bool, what string, err error) {
	if !s.pool.Config().Adapters {
		version, err := client.Version(ctx)
		return version == want, fmt.Sprintf("version %d", version), err
	}
	adapters, err := client.Adapters(ctx)
	return want == 0 || slices.Contains(adapters, want), fmt.Sprintf("adapters %v", adapters), err
}
