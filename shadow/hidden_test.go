package shadow

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// Tests that wait twice as long as an agent's turn: beside the agent they vanish, in its way they do not. On a quiet machine
// the overlap is about .7; the bound is what a busy one reaches, and TestTimesAreExact holds the arithmetic.
func TestWhatIsHidden(t *testing.T) {
	const turn, episodes, steps = 50 * time.Millisecond, 4, 5
	measure := func(mode Mode) (Stats, time.Duration) {
		r := newRig(t, false)
		r.worker.Slots = 16
		r.prober.Mode = mode
		p := r.newProber()
		r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
			time.Sleep(2 * turn)
			return passed(task, tree), nil
		}})
		var publish interface {
			Publish(context.Context, milepost.ProbeRequest) error
		} = p
		if mode == ModeSynchronous {
			publish = NewSync(p, 10*time.Second)
		}
		eps := make([]*milepost.Episode, episodes)
		began := time.Now()
		var agents sync.WaitGroup
		for e := range eps {
			id := fmt.Sprint("e", e)
			eps[e] = &milepost.Episode{ID: id, Task: r.task.ID, Status: milepost.EpisodeCompleted}
			agents.Go(func() {
				for s := range steps {
					time.Sleep(turn)
					req := r.step(id, s, 1+e*steps+s)
					if err := publish.Publish(t.Context(), req); err != nil {
						t.Error(err)
					}
					eps[e].Steps = append(eps[e].Steps, milepost.Step{Index: s, Tree: req.Tree, Probe: &milepost.Probe{ID: req.ID}})
					eps[e].FinalTree = req.Tree
				}
				req := r.verdict(id, e*steps+steps)
				if err := publish.Publish(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
		agents.Wait()
		ran := time.Since(began)
		must(t, p.Fill(t.Context(), eps, 20*time.Second))
		for _, ep := range eps {
			for _, s := range ep.Steps {
				if !s.Probe.Trusted {
					t.Errorf("%s: %+v", mode, s.Probe)
				}
			}
		}
		return p.Stats(), ran
	}
	shadow, fast := measure(ModeShadow)
	waiting, slow := measure(ModeSynchronous)
	t.Logf("shadow: episodes took %s, hidden %.2f, overlap %.2f; synchronous: %s, %.2f, %.2f", fast, shadow.HiddenShare(), shadow.OverlapShare(),
		slow, waiting.HiddenShare(), waiting.OverlapShare())
	if waiting.OverlapShare() != 0 || waiting.HiddenShare() > .2 || shadow.HiddenShare() < .5 || shadow.OverlapShare() < .2 {
		t.Errorf("shadow %+v\nsynchronous %+v", shadow, waiting)
	}
	if slow < fast+steps*turn { // each of the steps waited for twice a turn
		t.Errorf("the agents took %s beside the tests and %s waiting for them", fast, slow)
	}
}
