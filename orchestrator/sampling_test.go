package orchestrator

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// follower holds a run under dynamic sampling to the invariants of sampling.go, event by event, knowing only commands
// and events.
type follower struct {
	rt         *rapid.T
	cfg        Config
	dispatched map[string]EpisodeSpec // every episode command ever given
	ended      map[string]milepost.EpisodeStatus
	cancelled  map[string]bool   // keys
	judging    map[string]bool   // groups with a judge command
	judged     map[string]Event  // by group
	taskOf     map[string]string // by group
	rejections map[string]int
	retired    map[string]bool
	updates    map[int]bool // finalised
	open       int          // episodes under way
}

func newFollower(rt *rapid.T, cfg Config) *follower {
	return &follower{rt: rt, cfg: cfg, dispatched: map[string]EpisodeSpec{}, ended: map[string]milepost.EpisodeStatus{}, cancelled: map[string]bool{},
		judging: map[string]bool{}, judged: map[string]Event{}, taskOf: map[string]string{}, rejections: map[string]int{}, retired: map[string]bool{}, updates: map[int]bool{}}
}

// event notes what an event tells before the machine answers it.
func (f *follower) event(e Event) {
	switch e.Type {
	case EventEpisodeEnded:
		f.open--
		if _, twice := f.ended[e.Episode]; twice {
			f.rt.Fatalf("episode %s ended twice", e.Episode)
		}
		f.ended[e.Episode] = e.Status
	case EventGroupJudged:
		if _, twice := f.judged[e.Group]; twice {
			f.rt.Fatalf("group %s judged twice", e.Group)
		}
		f.judged[e.Group] = e
		task := f.taskOf[e.Group]
		if e.Kept || e.Graded == 0 || f.cancelled[judgeKey(e.Group)] {
			return
		}
		f.rejections[task]++
		if f.cfg.Sampling.Retired(e.Rate, f.rejections[task]) {
			f.retired[task] = true
		}
	}
}

// command checks a command that the machine gave.
func (f *follower) command(c Command) {
	switch c.Type {
	case CommandEpisode:
		f.episode(c.Episode)
	case CommandJudge:
		if f.judging[c.Group] {
			f.rt.Fatalf("group %s is judged twice", c.Group)
		}
		f.judging[c.Group] = true
		for _, s := range c.Episodes {
			if _, ok := f.ended[s.ID]; !ok {
				f.rt.Fatalf("group %s is judged before %s ended", c.Group, s.ID)
			}
		}
	case CommandCancel:
		for _, key := range c.Keys {
			if f.cancelled[key] {
				f.rt.Fatalf("%s is cancelled twice", key)
			}
			f.cancelled[key] = true
		}
	case CommandFinalise:
		f.finalise(c)
	}
}

func (f *follower) episode(s EpisodeSpec) {
	if _, twice := f.dispatched[s.ID]; twice {
		f.rt.Fatalf("episode %s dispatched twice", s.ID)
	}
	f.dispatched[s.ID] = s
	f.open++
	if s.Purpose != PurposeTrain {
		return
	}
	if f.retired[s.Task] && f.taskOf[s.Group] == "" {
		f.rt.Fatalf("the retired task %s is drawn again for %s", s.Task, s.Group)
	}
	for g, task := range f.taskOf {
		if g != s.Group && task == s.Task && g[:5] == s.Group[:5] {
			f.rt.Fatalf("task %s is drawn for %s and %s of one update", task, g, s.Group)
		}
	}
	f.taskOf[s.Group] = s.Task
}

func (f *follower) finalise(c Command) {
	if f.updates[c.Update] || f.open > 0 {
		f.rt.Fatalf("update %d is finalised again or with %d episodes under way", c.Update, f.open)
	}
	f.updates[c.Update] = true
	in := map[string]int{}
	for _, s := range c.Episodes {
		if _, ok := f.ended[s.ID]; !ok {
			f.rt.Fatalf("%s is in the batch and never ended", s.ID)
		}
		in[s.Group]++
	}
	if !slices.IsSortedFunc(c.Episodes, func(a, b EpisodeSpec) int {
		return slices.Compare([]byte(a.Group), []byte(b.Group))
	}) {
		f.rt.Fatal("the batch is not in the order of dispatch")
	}
	if len(in) != len(c.Sampling.Fates) || len(in) > f.cfg.Sampling.Bound(f.cfg.GroupsPerUpdate) {
		f.rt.Fatalf("%d groups in the batch, fates %v", len(in), c.Sampling.Fates)
	}
	for g, n := range in {
		if n != f.cfg.GroupSize {
			f.rt.Fatalf("group %s has %d episodes", g, n)
		}
		fate, e := c.Sampling.Fates[g], f.judged[g]
		touched := f.cancelled[judgeKey(g)]
		for _, s := range c.Episodes {
			touched = touched || s.Group == g && f.cancelled["episode "+s.ID]
		}
		want := FateRejected
		switch {
		case touched:
			want = FateSurplus
		case e.Kept:
			want = FateKept
		}
		if fate != want || !touched && !f.judging[g] {
			f.rt.Fatalf("group %s is %s, want %s (judged %+v)", g, fate, want, e)
		}
	}
	kept := c.Sampling.count(FateKept)
	if kept > f.cfg.GroupsPerUpdate || (kept < f.cfg.GroupsPerUpdate) != (c.Sampling.Short != "") {
		f.rt.Fatalf("%d of %d groups kept, reason %q", kept, f.cfg.GroupsPerUpdate, c.Sampling.Short)
	}
	if c.Sampling.Retired != len(f.retired) {
		f.rt.Fatalf("%d tasks are retired, want %d", c.Sampling.Retired, len(f.retired))
	}
}

func drawSampling(rt *rapid.T) Config {
	cfg := DefaultConfig()
	cfg.GroupsPerUpdate = rapid.IntRange(1, 3).Draw(rt, "groups")
	cfg.GroupSize = rapid.IntRange(1, 3).Draw(rt, "size")
	cfg.MaxUpdates = rapid.IntRange(1, 4).Draw(rt, "updates")
	cfg.MaxRetries = rapid.IntRange(0, 2).Draw(rt, "retries")
	cfg.EvalEvery = rapid.IntRange(0, 1).Draw(rt, "eval")
	cfg.Sampling = credit.Sampling{Criterion: credit.CriterionAdvantage, Replace: rapid.Bool().Draw(rt, "replace"),
		Oversample: rapid.SampledFrom([]float64{1, 1.5, 2.5}).Draw(rt, "oversample"), EasyRate: .97, HardRate: .03,
		EasyAfter: rapid.IntRange(0, 2).Draw(rt, "easy"), HardAfter: rapid.IntRange(0, 2).Draw(rt, "hard")}
	if rapid.Bool().Draw(rt, "bounded") {
		cfg.Sampling.MaxGroups = cfg.GroupsPerUpdate + rapid.IntRange(0, 3).Draw(rt, "beyond")
	}
	if !cfg.Sampling.Dynamic() {
		cfg.Sampling.Replace = true
	}
	return cfg
}

// TestSamplingInvariants explores random interleavings under dynamic sampling: episodes end in any order, are lost,
// cancelled or end before the cancelling reaches them; groups are kept, dropped, given up; the run is killed between any
// two events.
func TestSamplingInvariants(t *testing.T) {
	stops := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		cfg := drawSampling(rt)
		tasks := Tasks{Train: []string{"a", "b", "c", "d", "e", "f", "g"}[:rapid.IntRange(1, 7).Draw(rt, "tasks")], Validation: []string{"v"}}
		m, err := NewMachine(cfg, tasks, 7)
		if err != nil {
			rt.Fatal(err)
		}
		f := newFollower(rt, cfg)
		var log []Event
		step := func(e Event) {
			log = append(log, e)
			f.event(e)
			cs, err := m.Step(e)
			if err != nil {
				rt.Fatalf("%+v: %v", e, err)
			}
			for _, c := range cs {
				f.command(c)
				if c.Type == CommandStop {
					stops[c.Reason[:5]]++
				}
			}
		}
		step(Event{Type: EventStarted, Epoch: 1})
		for n := 0; m.Phase() != PhaseDone; n++ {
			out := m.Outstanding()
			if len(out) == 0 || n > 4000 {
				rt.Fatalf("nothing outstanding in phase %s after %d events", m.Phase(), n)
			}
			for _, c := range out {
				if c.Cancelled != f.cancelled[c.Key()] {
					rt.Fatalf("%s is marked cancelled: %v", c.Key(), c.Cancelled)
				}
			}
			c := out[rapid.IntRange(0, len(out)-1).Draw(rt, "which")]
			e := answerSampling(c, rapid.IntRange(0, 5).Draw(rt, "luck"))
			step(e)
			if _, err := m.Step(e); milepost.KindOf(err) != milepost.KindConflict {
				rt.Fatalf("the same event again: %v", err)
			}
			if rapid.IntRange(0, 9).Draw(rt, "kill") == 0 {
				m = replayed(rt, cfg, tasks, log, m)
			}
		}
		for id := range f.dispatched {
			if _, ok := f.ended[id]; !ok {
				rt.Fatalf("episode %s never ended", id)
			}
		}
	})
	if len(stops) < 2 {
		t.Errorf("the runs ended by %v; both max_updates and no_tasks should occur", stops)
	}
}

// replayed is a machine that was fed with the log; it must be in the state of the one that lived through it.
func replayed(rt *rapid.T, cfg Config, tasks Tasks, log []Event, m *Machine) *Machine {
	again, err := NewMachine(cfg, tasks, 7)
	if err != nil {
		rt.Fatal(err)
	}
	for _, e := range log {
		if _, err := again.Step(e); err != nil {
			rt.Fatalf("replay: %v", err)
		}
	}
	if !reflect.DeepEqual(again.Outstanding(), m.Outstanding()) || !maps.Equal(again.draw.rejections, m.draw.rejections) || !reflect.DeepEqual(again, m) {
		rt.Fatalf("replaying %d events gives another state", len(log))
	}
	return again
}

func answerSampling(c Command, luck int) Event {
	switch c.Type {
	case CommandEpisode:
		status := milepost.EpisodeCompleted
		switch {
		case luck == 0:
			status = milepost.EpisodeInfra
		case c.Cancelled && luck < 5:
			status = milepost.EpisodeCancelled
		}
		return Event{Type: EventEpisodeEnded, Episode: c.Episode.ID, Status: status}
	case CommandJudge:
		e := Event{Type: EventGroupJudged, Group: c.Group, Update: c.Update, Kept: luck < 2, Graded: 1, Rate: float64(luck%3) / 2}
		if luck == 5 {
			e.Graded, e.Rate = 0, 0
		}
		e.Cancelled = c.Cancelled && luck < 4
		return e
	}
	return answerTo(c, 1+luck%3)
}

// TestPlainSamplingJudgesNothing: with replacing, oversampling and retiring off the machine gives the commands it always
// gave, whatever the numbers of the rules are.
func TestPlainSamplingJudgesNothing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.MaxUpdates, cfg.EvalEvery = 3, 2, 2, 0
	cfg.Sampling.MaxGroups = 5
	m, err := NewMachine(cfg, Tasks{Train: []string{"a", "b"}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := m.Step(Event{Type: EventStarted})
	for err == nil && m.Phase() != PhaseDone {
		c := m.Outstanding()[0]
		if c.Type == CommandJudge || c.Sampling != nil {
			t.Fatalf("%+v", c)
		}
		cs, err = m.Step(answerTo(c, 1))
	}
	if err != nil || len(cs) != 1 || cs[0].Reason != "max_updates: 2 updates are done" {
		t.Errorf("%v, %v", cs, err)
	}
}

// TestSamplingConfig: bounds that cannot be met are refused by name.
func TestSamplingConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"schedule.sampling.max_groups is 11; allowed: 0, or 12": func(c *Config) { c.Sampling.MaxGroups = 11 },
		"schedule.group_size is 1":                              func(c *Config) { c.GroupSize, c.Sampling = 1, credit.DefaultSampling(milepost.BugRepair) },
		"sampling.criterion is \"luck\"":                        func(c *Config) { c.Sampling.Criterion = "luck" },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
