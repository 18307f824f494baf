package orchestrator

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// course runs a machine without evaluations, answering each command at once: an episode passes as pass says.
type course struct {
	m     *Machine
	log   []Event
	drawn []string // tasks of the groups, in order
	pass  func(spec EpisodeSpec) bool
}

func newCourse(t testing.TB, cfg Config, tasks Tasks, seed uint64, pass func(EpisodeSpec) bool) *course {
	t.Helper()
	cfg.EvalEvery, cfg.EvalBefore, cfg.MaxUpdates = 0, false, 1<<30
	m, err := NewMachine(cfg, tasks, seed)
	if err != nil {
		t.Fatal(err)
	}
	return &course{m: m, pass: pass}
}

// run does so many updates.
func (c *course) run(t testing.TB, updates int) {
	t.Helper()
	var todo []Command
	step := func(e Event) {
		c.log = append(c.log, e)
		cs, err := c.m.Step(e)
		if err != nil {
			t.Fatal(err)
		}
		todo = append(todo, cs...)
	}
	if c.m.Phase() == PhaseIdle {
		step(Event{Type: EventStarted, Epoch: 1})
	} else {
		todo = c.m.Outstanding()
	}
	until := c.m.Update() + updates
	passed := map[string][]bool{} // by group
	for len(todo) > 0 && (c.m.Update() < until || todo[0].Type != CommandEpisode) {
		cmd := todo[0]
		todo = todo[1:]
		switch cmd.Type {
		case CommandEpisode:
			if cmd.Episode.Attempt == 0 {
				c.drawn = append(c.drawn, cmd.Episode.Task)
			}
			passed[cmd.Episode.Group] = append(passed[cmd.Episode.Group], c.pass(cmd.Episode))
			step(Event{Type: EventEpisodeEnded, Episode: cmd.Episode.ID, Status: milepost.EpisodeCompleted})
		case CommandJudge:
			n := 0
			for _, ok := range passed[cmd.Group] {
				n += int(indicator(ok))
			}
			size := len(passed[cmd.Group])
			step(Event{Type: EventGroupJudged, Group: cmd.Group, Update: cmd.Update, Kept: true, Graded: size, Rate: float64(n) / float64(size)})
		case CommandFinalise:
			e := Event{Type: EventFinalised, Update: cmd.Update}
			if cmd.Sampling == nil {
				var eps []*milepost.Episode
				for _, s := range cmd.Episodes {
					eps = append(eps, &milepost.Episode{Group: s.Group, Task: s.Task, Outcome: milepost.Outcome{Graded: true, Resolved: c.pass(s)}})
				}
				e.Rates = taskRates(eps)
			}
			step(e)
		}
	}
}

// counts says how often each task was drawn.
func (c *course) counts() map[string]float64 {
	out := map[string]float64{}
	for _, task := range c.drawn {
		out[task]++
	}
	return out
}

func always(EpisodeSpec) bool { return true }

func taskNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("t%03d", i)
	}
	return out
}

// TestSharesMatchWeights: in the long run, with and without dynamic sampling, every task is drawn as its weight says, to
// within a few draws, as long as no share asks for more than one group of an update.
func TestSharesMatchWeights(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(4, 30).Draw(rt, "tasks")
		tasks := Tasks{Train: taskNames(n)}
		sum := 0.0
		for range n {
			w := rapid.Float64Range(.1, 10).Draw(rt, "weight")
			tasks.Weights, sum = append(tasks.Weights, w), sum+w
		}
		cfg := DefaultConfig()
		cfg.GroupsPerUpdate, cfg.GroupSize = rapid.IntRange(1, 4).Draw(rt, "groups"), 2
		if rapid.Bool().Draw(rt, "dynamic") {
			cfg.Sampling = credit.Sampling{Criterion: credit.CriterionOutcome, Replace: true, Oversample: 1, EasyRate: .97, HardRate: .03}
		}
		for _, w := range tasks.Weights {
			if w/sum*float64(cfg.GroupsPerUpdate) > .9 {
				rt.Skip("a share that no update can give")
			}
		}
		c := newCourse(t, cfg, tasks, rapid.Uint64().Draw(rt, "seed"), always)
		c.run(t, 120)
		got := c.counts()
		for i, task := range tasks.Train {
			want := tasks.Weights[i] / sum * float64(len(c.drawn))
			if math.Abs(got[task]-want) > 4 {
				rt.Errorf("%s was drawn %v times of %d, its weight asks for %.1f", task, got[task], len(c.drawn), want)
			}
		}
	})
}

// TestCurriculumDrawsWhatCanBeLearned: of tasks that always, sometimes and never pass, those in the middle gain, the
// others keep coming, and a task whose rate changes is noticed.
func TestCurriculumDrawsWhatCanBeLearned(t *testing.T) {
	for _, shape := range []string{ShapeFrontier, ShapeWindow} {
		for _, dynamic := range []bool{false, true} {
			cfg := DefaultConfig()
			cfg.GroupsPerUpdate, cfg.GroupSize = 4, 8
			cfg.Curriculum.Shape = shape
			if dynamic {
				cfg.Sampling = credit.Sampling{Criterion: credit.CriterionOutcome, Replace: true, Oversample: 1, EasyRate: .97, HardRate: .03}
			}
			tasks := Tasks{Train: taskNames(60)} // a third each: easy, in the middle, hard
			learned := false
			kind := func(task string) int { var i int; fmt.Sscanf(task, "t%d", &i); return i % 3 }
			c := newCourse(t, cfg, tasks, 3, func(s EpisodeSpec) bool {
				switch kind(s.Task) {
				case 0:
					return true
				case 1:
					return s.Attempt%2 == 0
				}
				return learned && s.Attempt%2 == 0
			})
			c.run(t, 200)
			share := func() (out [3]float64) {
				for task, n := range c.counts() {
					out[kind(task)] += n / float64(len(c.drawn))
				}
				return out
			}
			s := share()
			if s[1] < .6 || s[0] < .05 || s[2] < .05 || len(c.counts()) != 60 {
				t.Errorf("%s, dynamic %v: shares %.2v over %d tasks; the middle third should have most, and nothing be starved", shape, dynamic, s, len(c.counts()))
			}
			if easy, hard := c.m.PassRate("t000"), c.m.PassRate("t002"); easy < .85 || hard > .15 {
				t.Errorf("%s: measured rates %.2f and %.2f", shape, easy, hard)
			}
			learned, c.drawn = true, nil
			c.run(t, 200)
			if s := share(); s[2] < .3 {
				t.Errorf("%s, dynamic %v: hard tasks that became learnable have a share of %.2f", shape, dynamic, s[2])
			}
		}
	}
}

// TestNoTaskStarves: whatever weights and rates, a task waits no longer than its least share lets it.
func TestNoTaskStarves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(3, 12).Draw(rt, "tasks")
		cfg := DefaultConfig()
		cfg.GroupsPerUpdate, cfg.GroupSize = rapid.IntRange(1, 3).Draw(rt, "groups"), 2
		cfg.Curriculum.Shape = rapid.SampledFrom([]string{ShapeFrontier, ShapeWindow}).Draw(rt, "shape")
		cfg.Curriculum.Floor = .2
		luck := rapid.Uint64().Draw(rt, "luck")
		c := newCourse(t, cfg, Tasks{Train: taskNames(n)}, luck, func(s EpisodeSpec) bool { return derive(luck, s.Task, s.Update/5)%3 == 0 })
		c.run(t, 100)
		last := map[string]int{}
		for i, task := range c.drawn {
			last[task] = i
		}
		wait := int(2*float64(n)/.2) + cfg.GroupsPerUpdate
		for _, task := range c.m.tasks.Train {
			if at, ok := last[task]; !ok || len(c.drawn)-at > wait {
				rt.Errorf("%s was last drawn at %d of %d (ever: %v)", task, at, len(c.drawn), ok)
			}
		}
	})
}

// TestWeightedRunIsResumable: a machine that is fed the journal draws on as the first one does, and a seed decides.
func TestWeightedRunIsResumable(t *testing.T) {
	cfg := DefaultConfig()
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.Curriculum.Shape = 3, 2, ShapeFrontier
	tasks := Tasks{Train: taskNames(9), Weights: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	pass := func(s EpisodeSpec) bool { return derive(1, s.ID)%2 == 0 }
	first := newCourse(t, cfg, tasks, 5, pass)
	first.run(t, 20)
	again := newCourse(t, cfg, tasks, 5, pass)
	for _, e := range first.log {
		if _, err := again.m.Step(e); err != nil {
			t.Fatal(err)
		}
	}
	before := len(first.drawn)
	first.run(t, 20)
	again.run(t, 20)
	if !slices.Equal(first.drawn[before:], again.drawn) || len(again.drawn) < 50 {
		t.Errorf("drawn %v\nresumed %v", first.drawn[before:], again.drawn)
	}
	other := newCourse(t, cfg, tasks, 6, pass)
	other.run(t, 20)
	if slices.Equal(other.drawn[:20], first.drawn[:20]) {
		t.Error("another seed draws the same")
	}
}

// TestEqualWeightsKeepThePermutation: without weights and curriculum every task comes once before any comes twice.
func TestEqualWeightsKeepThePermutation(t *testing.T) {
	cfg := DefaultConfig()
	cfg.GroupsPerUpdate, cfg.GroupSize = 3, 1
	draws := map[string][]string{}
	for name, weights := range map[string][]float64{"none": nil, "equal": {2, 2, 2, 2, 2, 2, 2}} {
		c := newCourse(t, cfg, Tasks{Train: taskNames(7), Weights: weights}, 1, always)
		c.run(t, 7)
		for pass := range slices.Chunk(c.drawn, 7) {
			if seen := maps.Collect(func(yield func(string, bool) bool) {
				for _, task := range pass {
					yield(task, true)
				}
			}); len(pass) == 7 && len(seen) != 7 {
				t.Errorf("%s: pass %v", name, pass)
			}
		}
		draws[name] = c.drawn
	}
	if !slices.Equal(draws["none"], draws["equal"]) {
		t.Error("equal weights are drawn in another order than none")
	}
}

func TestCurriculumErrorsNameFieldAndRange(t *testing.T) {
	for want, change := range map[string]func(*Curriculum){
		`schedule.curriculum.shape is "steep"; allowed: flat, frontier, window`: func(c *Curriculum) { c.Shape = "steep" },
		"schedule.curriculum.floor is 0; allowed: more than 0, to 1":            func(c *Curriculum) { c.Floor = 0 },
		"schedule.curriculum.memory is NaN; allowed: 0 to 1":                    func(c *Curriculum) { c.Memory = math.NaN() },
		"schedule.curriculum.width is 2; allowed":                               func(c *Curriculum) { c.Width = 2 },
	} {
		cfg := DefaultConfig()
		change(&cfg.Curriculum)
		if err := cfg.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for want, tasks := range map[string]Tasks{
		"1 weights for 2 training tasks": {Train: []string{"a", "b"}, Weights: []float64{1}},
		"training task b weighs 0":       {Train: []string{"a", "b"}, Weights: []float64{1, 0}},
	} {
		if _, err := NewMachine(DefaultConfig(), tasks, 1); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
