package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// servedWorld is samplingWorld with servers that name the version of each token: the first of an episode's two is sampled
// when it begins, the second when it ends.
type servedWorld struct {
	*samplingWorld
	version atomic.Int32
	dies    int32 // version whose push kills the run
	least   int32 // no episode before the last evaluation may begin under an older version
}

func newServedWorld(crash int) *servedWorld {
	return &servedWorld{samplingWorld: &samplingWorld{world: &world{crash: crash, started: map[string]int{}}, patience: 5 * time.Millisecond}}
}

func (w *servedWorld) Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	began := w.version.Load()
	if began < w.least && spec.Purpose != EvalAfter { // that is of the best weights
		return nil, fmt.Errorf("%s begins under v%d after v%d was served", spec.ID, began, w.least)
	}
	ep, err := w.samplingWorld.Run(ctx, task, spec)
	if err != nil {
		return nil, err
	}
	ep.Steps[0].TokenEnd = 3
	ep.Samples = []milepost.Sample{{Tokens: []int32{1, 2, 3}, Logprobs: []float32{0, -1, -1}, Versions: []int32{-1, began, w.version.Load()}, Steps: []int32{-1, 0, 0}}}
	return ep, nil
}

func (w *servedWorld) Push(ctx context.Context, version int32, dir string) (map[string]float64, error) {
	if w.dies > 0 && version == w.dies {
		return nil, errCrash
	}
	m, err := w.world.Push(ctx, version, dir)
	time.Sleep(2 * time.Millisecond) // what is sampled meanwhile is of the older version
	if err == nil {
		w.version.Store(version)
	}
	return m, err
}

// newAsyncRun is a run of four updates of two groups of two with validations in between.
func newAsyncRun(t *testing.T, dir string, w *servedWorld, async Async, train ...string) *Runner {
	t.Helper()
	folder, engine := testFolder(t, dir)
	cfg := DefaultConfig()
	cfg.Mode, cfg.Async = ModeAsync, async
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.MaxUpdates, cfg.EvalEvery, cfg.Concurrency, cfg.CheckpointEvery = 2, 2, 4, 2, 8, 2
	cfg.Sampling = credit.DefaultSampling(milepost.BugRepair)
	cfg.Sampling.EasyAfter, cfg.Sampling.HardAfter = 0, 0
	split := Tasks{Train: train, Validation: []string{"v", "w"}, Heldout: []string{"x"}}
	var tasks []*milepost.Task
	for _, id := range slices.Concat(train, split.Validation, split.Heldout) {
		tasks = append(tasks, &milepost.Task{ID: id, Kind: milepost.BugRepair, Tests: []string{"t"}})
	}
	r, err := NewRunner(cfg, folder, 3, split, tasks, engine, Deps{Rollouts: w, Probes: w, Learner: w, Weights: w, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var asyncTasks = []string{"a", "b", "c", "e1", "f", "g", "h1", "i", "s1", "s2"}

// checkAsyncRun holds a finished run's folder to what its journal says.
func checkAsyncRun(t *testing.T, r *Runner, what string) {
	t.Helper()
	fail := func(format string, args ...any) { t.Helper(); t.Errorf("%s: %s", what, fmt.Sprintf(format, args...)) }
	count, ended, base := map[string]int{}, map[string]bool{}, map[int]int32{}
	served := int32(0)
	for _, e := range eventsOf(t, r.folder) {
		switch e.Type {
		case EventEpisodeEnded:
			count[e.Episode]++
			ended[e.Episode] = e.Status != milepost.EpisodeInfra // of those that were tried again, the last try is stored
		case EventGroupJudged:
			count["judge "+e.Group]++
		case EventFinalised, EventTrained:
			count[fmt.Sprint(e.Type, e.Update)]++
			base[e.Update] = served
		case EventPushed:
			if e.Version < served && r.Machine().Phase() != PhaseDone {
				fail("v%d is pushed after v%d", e.Version, served)
			}
			served = e.Version
		}
	}
	for k, n := range count {
		if n != 1 {
			fail("%s happened %d times", k, n)
		}
	}
	names, err := r.folder.Batches()
	if err != nil {
		t.Fatal(err)
	}
	stored, trained := map[string]string{}, map[string]bool{}
	var want []string
	for _, name := range names {
		records, err := r.folder.ReadEpisodes(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range records {
			if id := rec.Episode.ID; stored[id] != "" || count[id] != 1 {
				fail("episode %s of %s is in %s too, or ended %d times", id, name, stored[id], count[id])
			}
			stored[rec.Episode.ID] = name
			if oldest, newest := versionsOf(rec.Episode); rec.Purpose != PurposeTrain && oldest != newest {
				fail("evaluation episode %s saw v%d to v%d", rec.Episode.ID, oldest, newest)
			}
		}
		if !updateName.MatchString(name) {
			continue
		}
		want = append(want, name+".arrow")
		u := len(want)
		for _, row := range readRows(t, r.folder.Path("batches", name+".arrow")) {
			if trained[row.Episode] {
				fail("episode %s is trained twice", row.Episode)
			}
			trained[row.Episode] = true
			for i, on := range row.Mask {
				if age := base[u] - row.Versions[i]; on && (age < 0 || age > int32(r.cfg.Async.MaxStaleness)) {
					fail("%s trains on a token of v%d in update %d from v%d", row.Episode, row.Versions[i], u, base[u])
				}
			}
		}
	}
	for id, finished := range ended {
		if finished && stored[id] == "" {
			fail("episode %s ended and is in no file", id)
		}
	}
	if parts, _ := filepath.Glob(r.folder.Path("episodes", "*.part")); len(parts) > 0 || len(want) != 4 {
		fail("left behind: %v; updates %v", parts, want)
	}
	checkRecomputed(t, r, what)
	l, err := r.lineage()
	if err != nil {
		t.Fatal(err)
	}
	w := newServedWorld(0)
	if err := w.Load(context.Background(), l.load); err != nil {
		t.Fatal(err)
	}
	for _, e := range l.replay {
		w.state = append(w.state, filepath.Base(e.Batch))
	}
	if !slices.Equal(w.state, want) {
		fail("the weights hold %v, want %v", w.state, want)
	}
}

// TestAsyncPushesBeforeItSamples: a run that was killed in the middle of a push has episodes outstanding beside it. Servers
// that lost the weights have them before these begin.
func TestAsyncPushesBeforeItSamples(t *testing.T) {
	w := newServedWorld(0)
	dir, async := t.TempDir(), Async{MaxStaleness: 4, OnStale: StaleCut}
	w.patience, w.dies = 2*time.Second, 2
	r := newAsyncRun(t, dir, w, async, asyncTasks...)
	if err := errors.Join(r.Run(context.Background()), r.Close()); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	w = newServedWorld(0)
	w.least = 2
	r = newAsyncRun(t, dir, w, async, asyncTasks...)
	under := map[CommandType]int{}
	for _, c := range r.Machine().Outstanding() {
		under[c.Type]++
	}
	if under[CommandPush] != 1 || under[CommandEpisode] == 0 {
		t.Fatalf("outstanding: %v; want a push and episodes", under)
	}
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	checkAsyncRun(t, r, "after the push")
}

// checkRecomputed holds the credit that the folder gives anew to the credit on record.
func checkRecomputed(t *testing.T, r *Runner, what string) {
	t.Helper()
	err := r.folder.Recompute(r.engine, func(name string, again credit.Result) error {
		records, err := r.folder.ReadEpisodes(name)
		for i, rec := range records {
			for k, s := range rec.Credit.Steps {
				if got := again.Episodes[i].Steps[k]; got.AOut != s.AOut || got.Advantage != s.Advantage {
					t.Errorf("%s: credit of %s, step %d, is %+v, derived again %+v", what, rec.Episode.ID, k, s, got)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Errorf("%s: recompute: %v", what, err)
	}
}

// uncompact puts back into the growing file what finalised updates took from it: a crash came before it was rewritten.
func uncompact(t *testing.T, f *Folder, events []Event) {
	t.Helper()
	for _, e := range events {
		if e.Type == EventClosed {
			return
		}
	}
	for _, e := range events {
		if e.Type != EventFinalised {
			continue
		}
		records, err := f.ReadEpisodes(updateBatch(e.Update))
		if err != nil {
			t.Fatal(err)
		}
		part, _, err := openPart(f, untakenBatch)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(part.add(records...), part.close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAsyncResumesFromEveryCrash stops an asynchronous run at its n-th outside call and resumes it: nothing that ended is
// run again, lost or trained twice, and staleness holds.
func TestAsyncResumesFromEveryCrash(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, async := range []Async{{MaxStaleness: 1, OnStale: StaleCut}, {MaxStaleness: 0, OnStale: StaleMask}} {
		for crash := 1; ; crash += 3 {
			w := newServedWorld(crash)
			dir := t.TempDir()
			what := fmt.Sprintf("%+v, crash at call %d", async, crash)
			r := newAsyncRun(t, dir, w, async, asyncTasks...)
			err := r.Run(context.Background())
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if err == nil {
				if crash < 40 {
					t.Fatalf("the run ended before the crash at call %d", crash)
				}
				checkAsyncRun(t, r, what)
				break
			}
			before := eventsOf(t, r.folder)
			if crash%2 == 0 {
				uncompact(t, r.folder, before)
			}
			resumed := newServedWorld(0)
			for _, e := range before {
				resumed.least = max(resumed.least, e.Version)
			}
			r = newAsyncRun(t, dir, resumed, async, asyncTasks...)
			if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
				t.Fatalf("%s: resume: %v", what, err)
			}
			checkAsyncRun(t, r, what)
			for _, e := range before {
				if e.Type == EventEpisodeEnded && resumed.started[e.Episode] > 0 {
					t.Errorf("%s: %s had ended and was run again", what, e.Episode)
				}
			}
		}
	}
}

// TestAsyncMasksByToken: what is too old is left out of the loss and stays as context, and the metrics say so.
func TestAsyncMasksByToken(t *testing.T) {
	rows := []Row{
		{Episode: "old", Versions: []int32{-1, 1, 1}, Mask: []bool{false, true, true}, Advantages: []float32{0, 1, 1}},
		{Episode: "mixed", Versions: []int32{-1, 1, 3}, Mask: []bool{false, true, true}, Advantages: []float32{0, 1, 2}, Values: []float32{0, 3, 4}, Returns: []float32{0, 5, 6}},
		{Episode: "new", Versions: []int32{-1, 2, 4}, Mask: []bool{false, true, true}, Advantages: []float32{0, 1, 1}},
	}
	if _, err := (Async{MaxStaleness: 2, OnStale: StaleCut}).age(rows, 4); milepost.KindOf(err) != milepost.KindInternal {
		t.Errorf("cut lets a token of v1 into an update from v4: %v", err)
	}
	got, err := Async{MaxStaleness: 2, OnStale: StaleMask}.age(rows, 4)
	if err != nil || len(got.rows) != 2 || got.rows[0].Episode != "mixed" || got.rows[1].Episode != "new" {
		t.Fatalf("%+v, %v", got, err)
	}
	if m := got.rows[0]; !slices.Equal(m.Mask, []bool{false, false, true}) || !slices.Equal(m.Advantages, []float32{0, 0, 2}) ||
		!slices.Equal(m.Values, []float32{0, 0, 4}) || !slices.Equal(m.Returns, []float32{0, 0, 6}) || m.Versions[1] != 1 {
		t.Errorf("the mixed row is %+v", m)
	}
	metrics := map[string]float64{}
	got.metrics(metrics, &Sampled{Fates: map[string]Fate{"g": FateStale, "h": FateKept}})
	for name, want := range map[string]float64{"staleness_mean": 1, "staleness_max": 2, "tokens_stale": .5, "groups_stale": 1} {
		if metrics[name] != want {
			t.Errorf("%s is %g, want %g", name, metrics[name], want)
		}
	}
}

// TestAsyncOutage: where infrastructure loses every episode the run stops, instead of replacing lost groups without end,
// and goes on afterwards.
func TestAsyncOutage(t *testing.T) {
	dir, async := t.TempDir(), DefaultAsync()
	w := newServedWorld(0)
	down := &outageWorld{world: w.world, down: true}
	r := newAsyncRun(t, dir, w, async, asyncTasks...)
	r.deps.Rollouts = down
	err := errors.Join(r.Run(context.Background()), r.Close())
	if milepost.KindOf(err) != milepost.KindUnavailable {
		t.Fatalf("during the outage: %v", err)
	}
	if n := len(w.started); n > 100 {
		t.Errorf("%d episodes were begun during the outage", n)
	}
	w = newServedWorld(0)
	r = newAsyncRun(t, dir, w, async, asyncTasks...)
	if err := errors.Join(r.Run(context.Background()), r.Close()); err == nil {
		checkAsyncRun(t, r, "after the outage")
	} else {
		t.Error(err)
	}
}

// TestPartIsCompacted: of what stays the last record stays, and the file grows on behind it.
func TestPartIsCompacted(t *testing.T) {
	f, _ := testFolder(t, t.TempDir())
	p, _, err := openPart(f, untakenBatch)
	if err != nil {
		t.Fatal(err)
	}
	record := func(id, dropped string) EpisodeRecord {
		return EpisodeRecord{Episode: &milepost.Episode{ID: id}, Purpose: PurposeTrain, Dropped: dropped}
	}
	if err := p.add(record("a", ""), record("b", ""), record("c", "")); err != nil {
		t.Fatal(err)
	}
	if err := p.add(record("a", "judged")); err != nil {
		t.Fatal(err)
	}
	if p, err = p.compact(f, untakenBatch, map[string]bool{"a": true, "c": true, "later": true}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.add(record("later", "")), p.close()); err != nil {
		t.Fatal(err)
	}
	p, records, err := openPart(f, untakenBatch)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	var got []string
	for _, r := range records {
		got = append(got, r.Episode.ID+" "+r.Dropped)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"a judged", "c ", "later "}) {
		t.Errorf("the file holds %q", got)
	}
}

// loneCritic is a critic that refuses a second call while it has one.
type loneCritic struct {
	*critic
	under atomic.Int32
}

func (c *loneCritic) alone() error {
	if c.under.Add(1) > 1 {
		return errors.New("two calls at the same time")
	}
	time.Sleep(2 * time.Millisecond)
	return nil
}

func (c *loneCritic) Values(ctx context.Context, path, sum string) ([][]float32, error) {
	defer c.under.Add(-1)
	if err := c.alone(); err != nil {
		return nil, err
	}
	return c.critic.Values(ctx, path, sum)
}

func (c *loneCritic) Update(ctx context.Context, u int, path, sum string) (map[string]float64, error) {
	defer c.under.Add(-1)
	if err := c.alone(); err != nil {
		return nil, err
	}
	return c.critic.Update(ctx, u, path, sum)
}

// TestAsyncGroupsHaveValues: groups are judged, and their values asked for, beside update steps, but the trainer has one
// call at a time; a token that is masked for its age has neither value nor return.
func TestAsyncGroupsHaveValues(t *testing.T) {
	w := newServedWorld(0)
	r := newAsyncRun(t, t.TempDir(), w, Async{MaxStaleness: 0, OnStale: StaleMask}, asyncTasks...)
	r.engine, r.deps.Learner = gaeEngine(t), &loneCritic{critic: &critic{world: w.world}}
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	checkAsyncRun(t, r, "values")
	for u := 1; u <= 4; u++ {
		for _, row := range readRows(t, r.folder.Path("batches", updateBatch(u)+".arrow")) {
			for i, on := range row.Mask {
				if on == (row.Values[i] == 0) || !on && row.Returns[i] != 0 {
					t.Errorf("update %d, %s: mask %v, values %v, returns %v", u, row.Episode, row.Mask, row.Values, row.Returns)
				}
			}
		}
	}
}
