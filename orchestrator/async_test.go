package orchestrator

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// asyncModel lives through one asynchronous run by random answers and holds it to the invariants of async.go, knowing
// commands and events alone, but for [Machine.live] where groups are counted.
type asyncModel struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	cfg   Config
	tasks Tasks
	m     *Machine
	log   []Event

	served     int32
	pushing    int32               // version that the servers may already have, else served
	floor      map[string]int32    // by episode under way: version served when it began
	dispatched map[string]int      // times
	ended      map[string][2]int32 // oldest and newest; noVersion where lost
	cancelled  map[string]bool     // keys
	judged     map[string]Event    // by group
	since      map[string]int      // by judged group: updates finalised by then
	settled    map[string]string   // by group: the command that took it
	replaced   map[string]bool     // ids that were retried
	update     int                 // last finalised
	busy       bool                // an update is under way
	skipped    bool                // it trains on nothing
	seen       map[string]int      // what the runs came to
}

func newAsyncModel(t *testing.T, seed uint64, seen map[string]int) *asyncModel {
	rng := rand.New(rand.NewPCG(seed, 5))
	cfg := DefaultConfig()
	cfg.Mode = ModeAsync
	cfg.Async = Async{MaxStaleness: rng.IntN(4), OnStale: []string{StaleCut, StaleMask}[rng.IntN(2)]}
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.Concurrency = 1+rng.IntN(3), 1+rng.IntN(3), 1+rng.IntN(12)
	cfg.MaxUpdates, cfg.MaxRetries, cfg.EvalEvery, cfg.Patience = 1+rng.IntN(6), rng.IntN(3), rng.IntN(3), rng.IntN(4)
	cfg.Sampling = credit.PlainSampling()
	cfg.Sampling.Replace, cfg.Sampling.EasyAfter, cfg.Sampling.HardAfter = rng.IntN(2) == 0, rng.IntN(3), rng.IntN(3)
	cfg.Sampling.Oversample = []float64{1, 1.5, 2.5}[rng.IntN(3)]
	if rng.IntN(2) == 0 {
		cfg.Sampling.MaxGroups = cfg.GroupsPerUpdate + rng.IntN(4)
	}
	if rng.IntN(3) == 0 {
		cfg.Curriculum.Shape = ShapeFrontier
	}
	tasks := Tasks{Train: []string{"a", "b", "c", "d", "e", "f", "g"}[:1+rng.IntN(7)]}
	if rng.IntN(2) == 0 {
		tasks.Validation = []string{"v", "w"}
	}
	if rng.IntN(2) == 0 {
		tasks.Heldout = []string{"h"}
	}
	m, err := NewMachine(cfg, tasks, seed)
	if err != nil {
		t.Fatal(err)
	}
	return &asyncModel{t: t, seed: seed, rng: rng, cfg: cfg, tasks: tasks, m: m, floor: map[string]int32{}, dispatched: map[string]int{},
		ended: map[string][2]int32{}, cancelled: map[string]bool{}, judged: map[string]Event{}, settled: map[string]string{}, since: map[string]int{},
		replaced: map[string]bool{}, seen: seen}
}

func (a *asyncModel) fail(format string, args ...any) {
	a.t.Helper()
	a.t.Fatalf("seed %d, event %d, %+v: %s", a.seed, len(a.log), a.cfg.Async, fmt.Sprintf(format, args...))
}

// step feeds the machine and checks what it answers.
func (a *asyncModel) step(e Event) {
	a.log = append(a.log, e)
	switch e.Type {
	case EventPushed:
		a.served, a.pushing, a.busy = e.Version, e.Version, false
	case EventFinalised:
		a.skipped = e.Rows == 0
		a.busy = e.Rows > 0 || a.evaluating()
	case EventEvaluated:
		a.busy = a.busy && !a.skipped
	case EventGroupJudged:
		a.judged[e.Group], a.since[e.Group] = e, a.update
	}
	cs, err := a.m.Step(e)
	if err != nil {
		a.fail("%+v: %v", e, err)
	}
	for _, c := range cs {
		a.command(c)
	}
	if _, err := a.m.Step(e); e.Type != EventStarted && milepost.KindOf(err) != milepost.KindConflict {
		a.fail("the same event again: %v", err)
	}
}

func (a *asyncModel) evaluating() bool {
	return slices.ContainsFunc(a.m.Outstanding(), func(c Command) bool {
		return c.Type == CommandEvaluate || c.Type == CommandEpisode && c.Episode.Purpose != PurposeTrain
	})
}

func (a *asyncModel) command(c Command) {
	switch c.Type {
	case CommandEpisode:
		a.episode(c.Episode)
	case CommandCancel:
		for _, key := range c.Keys {
			if a.cancelled[key] {
				a.fail("%s is cancelled twice", key)
			}
			a.cancelled[key] = true
		}
		a.seen["cancel"]++
	case CommandJudge:
		for _, s := range c.Episodes {
			if _, ok := a.ended[s.ID]; !ok || s.Group != c.Group {
				a.fail("group %s is judged and %s did not end", c.Group, s.ID)
			}
		}
	case CommandFinalise:
		a.finalise(c)
	case CommandTrain, CommandPush:
		if a.evaluating() {
			a.fail("%s during an evaluation", c.Key())
		}
		if c.Type == CommandPush && !c.Load {
			if a.pushing = c.Version; c.Version <= a.served || int(c.Version) != a.update {
				a.fail("v%d is pushed after v%d in update %d", c.Version, a.served, a.update)
			}
		}
	case CommandClose:
		a.take(c, "close")
		a.seen["close"]++
	case CommandStop:
		word, _, _ := strings.Cut(c.Reason, ":")
		a.seen[word]++
	}
}

func (a *asyncModel) episode(s EpisodeSpec) {
	if a.dispatched[s.ID]++; a.dispatched[s.ID] > 1 {
		a.fail("episode %s is dispatched twice", s.ID)
	}
	if s.Purpose != PurposeTrain {
		return
	}
	a.floor[s.ID] = a.served
	under := 0
	for _, c := range a.m.Outstanding() {
		under += int(indicator(c.Type == CommandEpisode))
	}
	if under > max(a.cfg.Concurrency, len(a.tasks.Validation)+a.cfg.Concurrency) || under > a.cfg.Concurrency && !a.evaluating() {
		a.fail("%d episodes are under way", under)
	}
	if a.evaluating() {
		a.seen["rollouts beside an evaluation"]++
	}
	if a.busy {
		a.seen["rollouts beside an update"]++
	}
	open, ready := a.m.live()
	bound := (a.cfg.Async.MaxStaleness + 1) * a.cfg.GroupsPerUpdate
	if !a.busy {
		bound += a.cfg.Sampling.Dispatch(a.cfg.GroupsPerUpdate) - a.cfg.GroupsPerUpdate
	}
	if s.Retry == 0 && s.Attempt == 0 && open+ready+a.m.async.taken > bound {
		a.fail("%d groups under way, %d ready, %d in the update; allowed: %d", open, ready, a.m.async.taken, bound)
	}
}

// finalise checks the groups that an update takes.
func (a *asyncModel) finalise(c Command) {
	if a.busy || c.Update != a.update+1 {
		a.fail("update %d is finalised after update %d, which is under way: %v", c.Update, a.update, a.busy)
	}
	a.update, a.busy = c.Update, true
	if c.Base != a.served {
		a.fail("the update starts from v%d, not from v%d", c.Base, a.served)
	}
	a.take(c, c.Key())
	kept, short := 0, c.Sampling.Short != ""
	for g, fate := range c.Sampling.Fates {
		a.seen[string(fate)]++
		if fate != FateKept {
			continue
		}
		if waited := a.update - a.since[g]; waited > a.cfg.Async.MaxStaleness+4 {
			a.fail("group %s lay ready for %d updates", g, waited)
		}
		if kept++; !a.judged[g].Kept || a.judged[g].Cancelled || a.cancelled[judgeKey(g)] {
			a.fail("group %s trains and was judged %+v", g, a.judged[g])
		}
	}
	if kept > a.cfg.GroupsPerUpdate || (kept < a.cfg.GroupsPerUpdate) != short {
		a.fail("%d groups train, short %q", kept, c.Sampling.Short)
	}
	for _, s := range c.Episodes {
		v := a.ended[s.ID]
		if c.Sampling.Fates[s.Group] != FateKept || v[0] == noVersion {
			continue
		}
		age := c.Base - v[0]
		if age > 0 {
			a.seen["trained stale"]++
		}
		if a.cfg.Async.OnStale == StaleCut && age > int32(a.cfg.Async.MaxStaleness) {
			a.fail("%s has a token of v%d in an update from v%d", s.ID, v[0], c.Base)
		}
		if age > int32(a.cfg.Async.MaxStaleness) {
			a.seen["masked"]++
		}
	}
	if short {
		a.seen["short"]++
	}
}

// take checks that a command takes whole groups that ended, each for the first time.
func (a *asyncModel) take(c Command, by string) {
	sizes := map[string]int{}
	for _, s := range c.Episodes {
		if _, ok := a.ended[s.ID]; !ok || a.replaced[s.ID] {
			a.fail("%s takes %s, which did not end or was retried", by, s.ID)
		}
		sizes[s.Group]++
	}
	for g, n := range sizes {
		if a.settled[g] != "" {
			a.fail("%s takes group %s after %s", by, g, a.settled[g])
		}
		if a.settled[g] = by; c.Sampling.Fates[g] == "" || c.Sampling.Fates[g] == FateKept && n != a.cfg.GroupSize {
			a.fail("%s takes %d episodes of %s as %q", by, n, g, c.Sampling.Fates[g])
		}
	}
}

// answer is what a command comes to.
func (a *asyncModel) answer(c Command) Event {
	luck := a.rng.IntN(6)
	switch c.Type {
	case CommandEpisode:
		e := answerSampling(c, luck)
		a.ended[e.Episode] = [2]int32{noVersion, noVersion}
		if c.Episode.Purpose != PurposeTrain {
			return e
		}
		e.Oldest = a.floor[e.Episode] + a.rng.Int32N(a.pushing-a.floor[e.Episode]+1)
		e.Newest = e.Oldest + a.rng.Int32N(a.pushing-e.Oldest+1)
		if luck == 1 {
			e.Oldest, e.Newest = noVersion, noVersion
		}
		if !lost(e.Status) {
			a.ended[e.Episode] = [2]int32{e.Oldest, e.Newest}
		}
		return e
	case CommandFinalise:
		return Event{Type: EventFinalised, Update: c.Update, Rows: luck % 5 * c.Sampling.count(FateKept), Tokens: 1}
	case CommandClose:
		return Event{Type: EventClosed}
	}
	e := answerSampling(c, luck)
	if e.Type == EventGroupJudged {
		e.Kept = luck < 3
	}
	return e
}

// next picks what ends next. Some episodes are slow: nearly everything else comes first.
func (a *asyncModel) next(out []Command) Command {
	c := out[a.rng.IntN(len(out))]
	for range 12 {
		if c.Type != CommandEpisode || c.Episode.Seed%4 != 0 {
			break
		}
		c = out[a.rng.IntN(len(out))]
	}
	return c
}

// run lives through the run; it is killed and resumed between any two events now and then.
func (a *asyncModel) run() {
	a.step(Event{Type: EventStarted, Epoch: 1})
	for a.m.Phase() != PhaseDone {
		out := a.m.Outstanding()
		if len(out) == 0 || len(a.log) > 3000 {
			a.fail("%d outstanding in phase %s", len(out), a.m.Phase())
		}
		for _, c := range out {
			if c.Cancelled != a.cancelled[c.Key()] {
				a.fail("%s is marked cancelled: %v", c.Key(), c.Cancelled)
			}
		}
		c := a.next(out)
		e := a.answer(c)
		if c.Type == CommandEpisode && lost(e.Status) && c.Episode.Retry < a.cfg.MaxRetries && !c.Cancelled {
			a.replaced[c.Episode.ID] = true
		}
		a.step(e)
		if a.rng.IntN(20) == 0 {
			a.kill()
		}
	}
	for id, n := range a.dispatched {
		if _, ok := a.ended[id]; n != 1 || !ok {
			a.fail("episode %s was dispatched %d times and ended: %v", id, n, ok)
		}
		if g, _, _ := strings.Cut(id, "/"); strings.HasPrefix(g, "g0") && a.settled[g] == "" {
			a.fail("group %s was taken by nothing", g)
		}
	}
}

// kill resumes the run with a machine that has seen the journal alone.
func (a *asyncModel) kill() {
	again, err := NewMachine(a.cfg, a.tasks, a.seed)
	if err != nil {
		a.fail("%v", err)
	}
	for _, e := range a.log {
		if _, err := again.Step(e); err != nil {
			a.fail("replay: %v", err)
		}
	}
	if !reflect.DeepEqual(again, a.m) {
		a.fail("replaying gives another state")
	}
	a.m = again
	for _, c := range a.m.Outstanding() {
		if c.Type == CommandEpisode {
			a.floor[c.Episode.ID] = a.served // it begins anew
		}
	}
	a.step(Event{Type: EventStarted, Epoch: again.Epoch() + 1})
}

// TestAsyncInvariants explores random interleavings of asynchronous runs: episodes end in any order, some late, are lost,
// cancelled or end before the cancelling reaches them; groups are kept and dropped, get too old on the way or while they
// lie ready; batches have no signal; evaluations lie in between; the run is killed between any two events.
func TestAsyncInvariants(t *testing.T) {
	runs := uint64(3000)
	if testing.Short() {
		runs = 400
	}
	seen := map[string]int{}
	for seed := range runs {
		newAsyncModel(t, seed, seen).run()
	}
	t.Logf("%d runs: %v", runs, seen)
	for _, what := range []string{"kept", "rejected", "stale", "trained stale", "masked", "short", "cancel", "close", "max_updates", "no_tasks", "patience",
		"rollouts beside an evaluation", "rollouts beside an update"} {
		if seen[what] == 0 {
			t.Errorf("%q never occurred in %d runs: %v", what, runs, seen)
		}
	}
}

// TestAsyncConfig: what cannot be met is refused by name.
func TestAsyncConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`schedule.mode is "eager"; allowed: sync, async`:         func(c *Config) { c.Mode = "eager" },
		`schedule.async.max_staleness is -1; allowed: 0 or more`: func(c *Config) { c.Async.MaxStaleness = -1 },
		`schedule.async.on_stale is "keep"; allowed: cut, mask`:  func(c *Config) { c.Async.OnStale = "keep" },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
