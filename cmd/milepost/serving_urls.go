package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// takeURLs takes the user's own servers. Nobody supervises them: their health is asked for, and the pool's circuits keep
// requests from one that fails.
func (s *serving) takeURLs(urls []string) error {
	var own []*replica
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			return milepost.E("serve", milepost.KindInvalid, "server.urls[%d]: %s is listed twice", i, url)
		}
		r := &replica{name: url, url: url, served: policy.NoVersion}
		own = append(own, r)
		s.ready(r)
	}
	s.replicas = own
	s.work.Go(func() {
		for tick := time.NewTicker(s.cfg.Policy.Pool.HealthEvery); ; {
			s.pool.Check(s.ctx)
			for _, r := range own {
				s.checkVersion(r)
			}
			select {
			case <-tick.C:
			case <-s.ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	return nil
}

// checkVersion finds out whether a server was started anew behind the run's back, which its version tells: it then joins again.
func (s *serving) checkVersion(r *replica) {
	s.mu.Lock()
	want := r.served
	s.mu.Unlock()
	if want == policy.NoVersion {
		return
	}
	client, err := s.client(r.url)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Policy.Pool.HealthEvery)
	defer cancel()
	version, err := client.Version(ctx)
	s.mu.Lock()
	anew := err == nil && version != want && !r.busy && r.served == want
	s.mu.Unlock()
	if anew {
		s.say(fmt.Sprintf("%s serves version %d, pushed was %d: it was started anew", s.label(r), version, want))
		s.down(r)
		s.ready(r)
	}
}
