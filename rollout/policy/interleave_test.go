package policy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// The random-interleaving test: servers that die and come back, pushes that spoil some of them, repeats, rollbacks,
// endpoints that leave, and mirrors that lag behind, all in the fake time of a bubble. A token knows, in its id, whether the
// weights that sampled it were sound.
const (
	soundToken   int32 = 1
	spoiltToken  int32 = 2
	interleavers       = 40 // clients
)

type replica struct {
	mu      sync.Mutex
	up      bool
	paused  bool
	sound   bool
	version int32
}

// sample takes some tokens, each under the weights of its moment.
func (r *replica) sample(ctx context.Context, rng *rand.Rand) (*vllm.Generation, error) {
	g := &vllm.Generation{}
	for n := 1 + rng.IntN(8); len(g.IDs) < n; {
		select {
		case <-time.After(time.Duration(1+rng.IntN(20)) * time.Millisecond):
		case <-ctx.Done():
			return nil, milepost.E("replica", milepost.KindCanceled, "%w", ctx.Err())
		}
		r.mu.Lock()
		up, paused, sound, version := r.up, r.paused, r.sound, r.version
		r.mu.Unlock()
		if !up {
			return nil, milepost.E("replica", milepost.KindUnavailable, "connection refused")
		}
		if paused {
			continue
		}
		id := soundToken
		if !sound {
			id = spoiltToken
		}
		g.IDs, g.Versions, g.Newest = append(g.IDs, id), append(g.Versions, version), max(g.Newest, version)
	}
	return g, nil
}

func (r *replica) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// interleaving is the owner's pool with its servers, the mirrors, and the one who pushes.
type interleaving struct {
	t        *testing.T
	rng      *rand.Rand
	owner    *Pool
	pools    []*Pool // owner and mirrors
	replicas map[string]*replica
	version  int32
}

func newInterleaving(t *testing.T, seed uint64) *interleaving {
	w := &interleaving{t: t, rng: rand.New(rand.NewPCG(seed, 7)), owner: bubblePool(t), replicas: map[string]*replica{}}
	w.owner.cfg.MaxConcurrent = 8
	w.pools = []*Pool{w.owner, bubblePool(t), bubblePool(t)}
	for i, p := range w.pools[1:] {
		rng := rand.New(rand.NewPCG(seed, uint64(50+i)))
		var mu sync.Mutex
		delay := func() {
			mu.Lock()
			d := time.Duration(rng.IntN(4)) * time.Millisecond
			mu.Unlock()
			time.Sleep(d)
		}
		p.deps.Fresh = func(ctx context.Context) ([]EndpointState, error) {
			delay()
			states := w.owner.Snapshot()
			delay()
			if len(states) > 0 && states[0].Term%7 == uint64(time.Now().UnixMilli()%7) {
				return nil, milepost.E("fresh", milepost.KindUnavailable, "the owner does not answer")
			}
			return states, nil
		}
	}
	for i := range 3 {
		w.replicas[fmt.Sprintf("http://%c", 'a'+i)] = &replica{}
	}
	for _, u := range w.urls() {
		w.start(u)
	}
	w.push(w.urls(), 0)
	return w
}

func (w *interleaving) urls() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for u := range w.replicas {
			if !yield(u) {
				return
			}
		}
	})
}

func (w *interleaving) start(url string) {
	r := w.replicas[url]
	r.set(func() { r.up, r.paused, r.sound, r.version = true, false, false, 0 })
	if err := w.owner.Add(url); err != nil {
		w.t.Error(err)
	}
}

func (w *interleaving) pause(most int) {
	time.Sleep(time.Duration(w.rng.IntN(most)) * time.Millisecond)
}

// push brings the version to the servers one after the other, as many times as it takes to please the canary or twice.
func (w *interleaving) push(urls []string, spoilt float64) {
	for _, url := range urls {
		r := w.replicas[url]
		for range 2 {
			w.owner.Shut(url)
			r.set(func() { r.paused = true })
			w.pause(30)
			sound := w.rng.Float64() >= spoilt
			r.set(func() { r.paused, r.sound, r.version = false, sound, w.version })
			w.pause(60) // the canary
			if sound {
				w.owner.Approve(url, w.version)
				break
			}
			w.owner.Quarantine(url, w.version, errors.New("spoilt"))
			w.pause(20)
		}
	}
}

func (w *interleaving) members() []string {
	var out []string
	for _, s := range w.owner.Snapshot() {
		out = append(out, s.URL)
	}
	return out
}

// disturb does one thing at random.
func (w *interleaving) disturb() {
	members := w.members()
	switch n := w.rng.IntN(10); {
	case n < 5:
		w.version++
		w.push(members, 0.4)
	case n < 6 && w.version > 0: // the weights before are put back
		w.version--
		for _, url := range members {
			w.owner.Quarantine(url, w.version+1, errors.New("given up"))
		}
		w.push(members, 0.3)
	case n < 8 && len(members) > 1: // one dies; somebody notices, and starts it again
		url := members[w.rng.IntN(len(members))]
		r := w.replicas[url]
		r.set(func() { r.up = false })
		w.pause(40)
		w.owner.Remove(url)
		w.pause(200)
		w.start(url)
		w.push([]string{url}, 0.3)
	case len(members) > 1: // one leaves and comes back
		url := members[w.rng.IntN(len(members))]
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(w.rng.IntN(100))*time.Millisecond)
		w.owner.Drain(ctx, url)
		cancel()
		w.pause(100)
		w.start(url)
		w.push([]string{url}, 0.3)
	}
	w.pause(50)
}

// mirror lets a pool follow the owner, late and with gaps, until ctx ends.
func (w *interleaving) mirror(ctx context.Context, p *Pool, rng *rand.Rand) {
	for ctx.Err() == nil {
		changed, states := w.owner.Changed(), w.owner.Snapshot()
		time.Sleep(time.Duration(rng.IntN(80)) * time.Millisecond)
		if err := p.Follow(states); err != nil {
			w.t.Error(err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// watch looks for a request that waits though it could be placed.
func (w *interleaving) watch(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(3 * time.Millisecond)
		for i, p := range w.pools {
			p.mu.Lock()
			for _, q := range p.queues {
				if len(q) > 0 {
					if e, err := p.pick(q[0]); e != nil || err != nil {
						w.t.Errorf("pool %d: a request waits though %v, %v", i, e, err)
					}
				}
			}
			p.mu.Unlock()
		}
	}
}

// client samples turn after turn until ctx ends; each turn has to come to its end.
func (w *interleaving) client(ctx context.Context, i int, p *Pool, rng *rand.Rand) (turns int) {
	for ctx.Err() == nil {
		g, url, err := p.Sample(context.Background(), fmt.Sprint(i), func(ctx context.Context, c *vllm.Client, _ string) (*vllm.Generation, error) {
			return w.replicas[c.URL()].sample(ctx, rng)
		})
		switch {
		case err != nil:
			w.t.Errorf("client %d lost a request: %v", i, err)
		case slices.Contains(g.IDs, spoiltToken):
			w.t.Errorf("client %d got tokens of spoilt weights from %s: versions %v, spoilt where 2: %v", i, url, g.Versions, g.IDs)
		}
		turns++
	}
	return turns
}

func TestRandomInterleavingsLetNoDistrustedTokenOut(t *testing.T) {
	var turns, rerun, held, dropped int64
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			w := newInterleaving(t, seed)
			ctx, stop := context.WithCancel(context.Background())
			var clients, side sync.WaitGroup
			var mu sync.Mutex
			for i, p := range w.pools[1:] {
				side.Go(func() { w.mirror(ctx, p, rand.New(rand.NewPCG(seed, uint64(100+i)))) })
			}
			side.Go(func() { w.watch(ctx) })
			work, end := context.WithCancel(context.Background())
			for i := range interleavers {
				clients.Go(func() {
					n := w.client(work, i, w.pools[i%len(w.pools)], rand.New(rand.NewPCG(seed, uint64(1000+i))))
					mu.Lock()
					defer mu.Unlock()
					turns += int64(n)
				})
			}
			for range 40 {
				w.disturb()
			}
			w.version++
			w.push(w.members(), 0)
			end()
			clients.Wait() // a request that waits for ever is a deadlock, which the bubble reports
			stop()
			side.Wait()
			for i, p := range w.pools {
				for _, s := range p.Stats() {
					if s.Running != 0 || s.Held != 0 {
						t.Errorf("pool %d: %+v at the end, want nothing under way", i, s)
					}
				}
				c := p.Totals()
				rerun, held, dropped = rerun+c.Rerun, held+c.Held, dropped+c.Dropped
			}
		})
	}
	t.Logf("%d turns, %d answers held, %d dropped, %d requests run again", turns, held, dropped, rerun)
	if turns < 10000 || rerun == 0 || held == 0 || dropped == 0 {
		t.Error("the interleavings did not come to what they are to test")
	}
}
