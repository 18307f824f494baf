package shadow

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// edit is a step that changed one file, on top of what the episode changed before.
func edit(episode string, step, tree int, files ...string) milepost.ProbeRequest {
	r := request(episode, milepost.ProbeStep, step, tree)
	for _, f := range files { // "path=version"
		r.Delta = append(r.Delta, milepost.TreeChange{Path: f[:1], Mode: 0o100644, Blob: f[2:]})
	}
	return r
}

func mergingBook(max int, behind float64) *book {
	cfg := bookConfig(3)
	cfg.Merge, cfg.MergeBehind = max, behind
	return newBook(cfg, nil)
}

func merges(b *book, ids ...string) (out []string) {
	for _, id := range ids {
		m := "-"
		if e := b.entries[id]; e.flight != nil && e.flight.mergeOf(e) != nil {
			g := e.flight.mergeOf(e)
			m = fmt.Sprintf("%s:%d/%d", g.ID, g.Index, g.Size)
		}
		out = append(out, m)
	}
	return out
}

func TestWhatIsMerged(t *testing.T) {
	ids := []string{"e/step0", "e/step1", "e/step2", "e/step3"}
	none := []string{"-", "-", "-", "-"}
	for _, c := range []struct {
		name  string
		max   int
		steps []milepost.ProbeRequest
		want  []string
	}{
		{"same file", 5, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 2, "a=2"), edit("e", 2, 3, "a=3"), edit("e", 3, 4, "a=4")},
			[]string{"e/step3:0/4", "e/step3:1/4", "e/step3:2/4", "e/step3:3/4"}},
		{"at most two", 2, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 2, "a=2"), edit("e", 2, 3, "a=3"), edit("e", 3, 4, "a=4")},
			[]string{"e/step1:0/2", "e/step1:1/2", "e/step3:0/2", "e/step3:1/2"}},
		{"never", 1, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 2, "a=2"), edit("e", 2, 3, "a=3"), edit("e", 3, 4, "a=4")}, none},
		{"another file", 5, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 2, "a=1", "b=1"), edit("e", 2, 3, "a=1", "b=2"), edit("e", 3, 4, "a=2", "b=2")},
			[]string{"-", "e/step2:0/2", "e/step2:1/2", "-"}},
		{"more files", 5, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 2, "a=2", "b=1"), edit("e", 2, 3, "a=3", "b=2"), edit("e", 3, 4, "a=4", "b=2")},
			[]string{"-", "e/step2:0/2", "e/step2:1/2", "-"}},
		{"a file goes and comes", 5, []milepost.ProbeRequest{edit("e", 0, 1, "a=1", "b=1"), edit("e", 1, 2, "b=1"), edit("e", 2, 3, "a=2", "b=1"), edit("e", 3, 4, "a=2", "b=1", "c=1")},
			[]string{"-", "e/step2:0/2", "e/step2:1/2", "-"}},
		{"back to the untouched tree", 5, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 0), edit("e", 2, 3, "a=3"), edit("e", 3, 4, "a=4")},
			[]string{"-", "-", "e/step3:0/2", "e/step3:1/2"}},
		{"back to a tree that waits", 5, []milepost.ProbeRequest{edit("e", 0, 1, "a=1"), edit("e", 1, 1, "a=1"), edit("e", 2, 3, "a=3"), edit("e", 3, 4, "a=4")},
			[]string{"-", "-", "e/step3:0/2", "e/step3:1/2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, pr := mergingBook(c.max, 0), testPrint(t)
			for _, r := range c.steps {
				b.request(r, pr, true, t0)
			}
			if got := merges(b, ids...); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			seen := map[*flight]bool{}
			for _, f := range b.flights {
				seen[f] = true
			}
			for _, id := range ids {
				if !seen[b.entries[id].flight] {
					t.Errorf("%s waits for a flight that has left", id)
				}
			}
		})
	}
}

func TestWhatIsNotMerged(t *testing.T) {
	pr := testPrint(t)
	two := func(b *book, between func(f *flight)) []string {
		f := b.request(edit("e", 0, 1, "a=1"), pr, true, t0)
		between(f)
		b.request(edit("e", 1, 2, "a=2"), pr, true, t0)
		return merges(b, "e/step0", "e/step1")
	}
	none := []string{"-", "-"}
	for name, got := range map[string][]string{
		"the queue is not behind": two(mergingBook(5, 8), func(*flight) {}),
		"begun": func() []string {
			b := mergingBook(5, 0)
			return two(b, func(f *flight) { b.started(address{Key: f.key, Attempt: 1, Delivery: 1}, t0) })
		}(),
		"shared with another episode": func() []string {
			b := mergingBook(5, 0)
			return two(b, func(*flight) { b.request(edit("other", 0, 1, "a=1"), pr, true, t0) })
		}(),
		"a step between": func() []string {
			b := mergingBook(5, 0)
			b.request(edit("e", 0, 1, "a=1"), pr, true, t0)
			b.request(edit("e", 2, 2, "a=2"), pr, true, t0)
			return merges(b, "e/step0", "e/step2")
		}(),
		"a barrier": func() []string {
			b := mergingBook(5, 0)
			b.request(edit("e", 0, 1, "a=1"), pr, false, t0)
			b.request(edit("e", 1, 2, "a=2"), pr, false, t0)
			return merges(b, "e/step0", "e/step1")
		}(),
	} {
		if !reflect.DeepEqual(got, none) {
			t.Errorf("%s: merged %v", name, got)
		}
	}
	b := mergingBook(5, 2)
	b.slots = 3 // behind with more than 6 waiting
	for i := range 5 {
		b.request(edit(fmt.Sprint("x", i), 0, 10+i, "a=1"), pr, true, t0)
	}
	if got := two(b, func(*flight) {}); got[1] == "-" {
		t.Errorf("seven wait for three slots: %v", got)
	}
}

// A merge group ends together, whatever its end; what was asked for while it waited shares the probe without being part.
func TestMergeGroupEndsTogether(t *testing.T) {
	b, pr := mergingBook(5, 0), testPrint(t)
	first := b.request(edit("e", 0, 1, "a=1"), pr, true, at(0))
	b.sent(first, 1, 7)
	f := b.request(edit("e", 1, 2, "a=2"), pr, true, at(1))
	if f.replaces != first || b.flights[first.key] != nil {
		t.Fatalf("the first flight is still there: %+v", f)
	}
	b.request(request("e", milepost.ProbeVerdict, 2, 2), pr, true, at(2))
	out := b.result(okResult(first, 1, time.Second), at(3)) // a worker had it in hand: kept, changes nothing
	if out.store == nil || b.entries["e/step0"].probe != nil || b.stats.AfterBarrier != 1 {
		t.Errorf("result of the flight that was taken over: %+v, stats %+v", out, b.stats)
	}
	b.result(okResult(f, 1, time.Second), at(4))
	for i, id := range []string{"e/step0", "e/step1"} {
		p := b.entries[id].probe
		if p == nil || !p.Trusted || p.Tree != treeID(2) || p.ID != id || *p.Merge != (milepost.Merge{ID: "e/step1", Size: 2, Index: i}) {
			t.Errorf("%s: %+v", id, p)
		}
	}
	if v := b.entries["e/verdict2"].probe; v == nil || !v.Trusted || v.Merge != nil {
		t.Errorf("verdict %+v", v)
	}
	if s := b.stats; s.Merged != 1 || s.Trusted != 3 {
		t.Errorf("stats %+v", s)
	}
	if b.request(edit("z", 0, 1, "a=1"), pr, true, at(5)) != nil {
		t.Error("the result that nobody waited for does not answer a later request")
	}
}

func TestReplacedPartOfAGroup(t *testing.T) {
	b, pr := mergingBook(5, 0), testPrint(t)
	for i := range 4 {
		b.request(edit("e", i, 1+i, fmt.Sprintf("a=%d", i)), pr, true, t0)
	}
	b.request(edit("e", 1, 9, "a=9"), pr, true, t0) // the step was done again
	if p := b.entries["e/step0"].probe; p == nil || p.Trusted || p.Continuity != milepost.ContinuityKept || p.Merge != nil {
		t.Errorf("step before the replaced one: %+v", p)
	}
	if got, want := merges(b, "e/step1", "e/step2", "e/step3"), []string{"-", "e/step3:0/2", "e/step3:1/2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	b.release("e")
	if len(b.flights) != 0 || len(b.entries) != 0 || len(b.tails) != 0 {
		t.Errorf("left behind: %v %v %v", b.flights, b.entries, b.tails)
	}
}

// Through the real server: a slow worker, an episode that edits one file again and again, and the credit engine, which
// refuses groups that are not what its rules demand.
func TestMergedProbesSatisfyCredit(t *testing.T) {
	for _, bound := range []time.Duration{20 * time.Second, 0} { // back in time, and late
		r := newRig(t, false)
		r.worker.Slots = 1
		r.prober.MergeBehind = 0
		p := r.newProber()
		release := make(chan struct{})
		began := make(chan struct{}, 100)
		r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
			began <- struct{}{}
			<-release
			out := passed(task, tree)
			if tree == task.BaseTree {
				out.Report[0] = milepost.Failed
			}
			return out, nil
		}})
		ep := &milepost.Episode{ID: "e", Group: "g", Task: r.task.ID, Status: milepost.EpisodeCompleted}
		for i := range 7 {
			step := milepost.Step{Index: i, Tree: treeID(1 + i), Valid: true, Executed: true}
			if i != 3 { // a step that read
				blob, err := r.blobs.Put([]byte(fmt.Sprint(i)))
				must(t, err)
				req := r.step("e", i, 1+i)
				req.Delta = []milepost.TreeChange{{Path: "f", Mode: 0o100644, Blob: blob}}
				step.Delta, step.Probe = req.Delta, &milepost.Probe{ID: req.ID}
				must(t, p.Publish(t.Context(), req))
				if i == 0 { // begun, so it stays alone
					<-began
					eventually(t, "the worker's notice", func() bool {
						p.mu.Lock()
						defer p.mu.Unlock()
						return p.book.entries["e/0"].flight.phase == phaseRunning
					})
				}
			}
			ep.Steps = append(ep.Steps, step)
		}
		ep.FinalTree = treeID(7)
		must(t, p.Publish(t.Context(), r.verdict("e", 7)))
		if bound > 0 {
			close(release)
		}
		must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, bound))
		if bound == 0 {
			close(release)
		}
		var groups []string
		for _, s := range ep.Steps {
			switch {
			case s.Probe == nil:
				groups = append(groups, "")
			case s.Probe.Merge == nil:
				groups = append(groups, "alone")
			default:
				groups = append(groups, fmt.Sprintf("%d/%d", s.Probe.Merge.Index, s.Probe.Merge.Size))
			}
		}
		if want := []string{"alone", "0/2", "1/2", "", "0/3", "1/3", "2/3"}; !reflect.DeepEqual(groups, want) {
			t.Errorf("groups %q, want %q", groups, want)
		}
		base, err := p.Baseline(t.Context(), r.task)
		must(t, err)
		engine, err := credit.New(credit.Default())
		must(t, err)
		if _, err := engine.Assign([]credit.Input{{Episode: ep, Task: r.task, Baseline: base}}); err != nil {
			t.Errorf("bound %s: %v", bound, err)
		}
	}
}
