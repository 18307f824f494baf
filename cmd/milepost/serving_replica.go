package main

import (
	"context"
	"fmt"

	"github.com/milepost-rl/milepost/rollout/policy"
)

// replica is one vLLM server as the run sees it. Its life:
//
//	(down) ── ready ──▶ up, joining ── pushed, canary agrees ──▶ up, open ⇄ push ⇄ up, shut
//	  ▲ ▲                   │                                        │
//	  │ └──── exited ───────┴──────────────── exited ────────────────┘      up, quarantined: pushed again later
//	  └─ lost: given up; a later start, or a push that takes, brings it back
//
// Joining, open, shut and quarantined are the pool's to know; up, busy and lost stand here, guarded by serving.mu.
type replica struct {
	name    string // vllm-0, a host, or the name that a joined one gave itself
	url     string
	started bool // by this process, which knows when it ends

	up     bool
	start  int   // counts its starts: what an earlier one was in the middle of is stale
	busy   bool  // a push to it is under way
	brings bool  // bring is at it, whether in a push or between two
	tried  int   // number of the order that it was last pushed, in vain or not
	has    int   // number of the order that it was pushed since it came up; 0 = none
	served int32 // its version; policy.NoVersion = none
	lost   error // why it is given up, nil while it is not
}

// order is what replicas are to serve; number tells orders of one version apart, 0 is none.
type order struct {
	number  int
	version int32
	dir     string
	ctx     context.Context // ends with the next order
	end     context.CancelFunc
}

// forget forgets what the replica was pushed; serving.mu is held.
func (r *replica) forget() { r.has, r.tried, r.served = 0, 0, policy.NoVersion }

// ready makes a replica that serves a member of the pool, and brings it the current weights.
func (s *serving) ready(r *replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit(r)
}

// admit is ready; mu is held.
func (s *serving) admit(r *replica) {
	r.forget()
	r.up, r.lost = true, nil
	r.start++
	if err := s.pool.Add(r.url); err != nil { // never: it left the pool when it went down
		s.say(fmt.Sprintf("%s: %v", s.label(r), err))
	}
	s.tell()
	switch {
	case s.unjudged:
		s.pool.Trust(r.url)
	case s.want.number > 0:
		if r.start > 1 {
			s.say(s.label(r) + " is up again; pushing the weights")
		}
		start := r.start
		r.brings = true
		s.work.Go(func() { s.bring(r, start) })
	}
}

// down takes a replica that does not serve any more out of the pool; its requests run again elsewhere.
func (s *serving) down(r *replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expel(r)
}

// expel is down; mu is held.
func (s *serving) expel(r *replica) {
	r.forget()
	r.up = false
	s.pool.Remove(r.url)
	s.tell()
}

// lose gives a replica up.
func (s *serving) lose(r *replica, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.lost = why
	s.tell()
	s.giveUpIfNone()
}

// trust lets all replicas sample as they are: no trainer judges what they serve.
func (s *serving) trust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unjudged = true
	for _, r := range s.replicas {
		if r.up {
			s.pool.Trust(r.url)
		}
	}
}
