package shadow

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// beside is an agent and the tests of its steps, by a clock that moves only in an agent's turn and, where probes take time of
// their own, in a probe: what is counted depends on who waits for whom, and on nothing else.
type beside struct {
	clock *testClock
	mu    sync.Mutex
	turns int           // begun
	next  chan struct{} // closed at the next turn's begin
	ahead int           // probes that ended after the turn behind them had begun
}

func (b *beside) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns++
	close(b.next)
	b.next = make(chan struct{})
}

// await returns once n turns have begun, or false after a time in which they would have begun ten times.
func (b *beside) await(n int) bool {
	end := time.After(20 * time.Second)
	for {
		b.mu.Lock()
		turns, next := b.turns, b.next
		b.mu.Unlock()
		if turns >= n {
			return true
		}
		select {
		case <-next:
		case <-end:
			return false
		}
	}
}

// Beside the agent a probe costs it nothing: each turn begins before the probe of the step before it has ended, which here
// cannot end earlier. In its way, each turn begins after it.
func TestWhatIsHidden(t *testing.T) {
	const turn, steps = 50 * time.Millisecond, 12
	measure := func(mode Mode) (Stats, *beside) {
		r := newRig(t, false)
		r.worker.Slots = 4
		r.prober.Mode, r.prober.Merge = mode, 1
		b := &beside{clock: newClock(), next: make(chan struct{})}
		p := r.newProber(WithClock(b.clock.now))
		step := map[string]int{}
		for s := range steps {
			step[treeID(1+s)] = s
		}
		r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
			s := step[tree]
			if mode == ModeSynchronous {
				b.clock.add(2 * turn)
			} else if !b.await(s + 2) {
				t.Errorf("the agent waits for the probe of step %d", s)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.turns >= s+2 {
				b.ahead++
			}
			return passed(task, tree), nil
		}})
		var publish interface {
			Publish(context.Context, milepost.ProbeRequest) error
		} = p
		if mode == ModeSynchronous {
			publish = NewSync(p, time.Minute)
		}
		ep := &milepost.Episode{ID: "e", Task: r.task.ID, Status: milepost.EpisodeCompleted, FinalTree: treeID(steps)}
		for s := range steps {
			b.begin()
			b.clock.add(turn)
			req := r.step("e", s, 1+s)
			must(t, publish.Publish(t.Context(), req))
			ep.Steps = append(ep.Steps, milepost.Step{Index: s, Tree: req.Tree, Probe: &milepost.Probe{ID: req.ID}})
		}
		b.begin() // the submission
		b.clock.add(turn)
		must(t, publish.Publish(t.Context(), r.verdict("e", steps)))
		must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, time.Minute))
		for _, s := range ep.Steps {
			if !s.Probe.Trusted {
				t.Errorf("%s: %+v", mode, s.Probe)
			}
		}
		return p.Stats(), b
	}
	shadow, ahead := measure(ModeShadow)
	waiting, behind := measure(ModeSynchronous)
	if ahead.ahead != steps || shadow.OverlapShare() != 1 || shadow.HiddenShare() != 1 || shadow.BarrierWait != 0 {
		t.Errorf("shadow: the agent went on beside %d of %d probes; %+v", ahead.ahead, steps, shadow)
	}
	if behind.ahead != 0 || waiting.OverlapShare() != 0 || waiting.HiddenShare() != 0 || waiting.BarrierWait != steps*2*turn {
		t.Errorf("synchronous: the agent went on beside %d of %d probes; %+v", behind.ahead, steps, waiting)
	}
}
