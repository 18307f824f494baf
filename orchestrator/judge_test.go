package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// samplingWorld has tasks by their first letter: e is always resolved, h never, s is slow, d has probes that never come,
// the rest is resolved by every other attempt.
type samplingWorld struct {
	*world
	patience time.Duration // after which slow episodes and probes come after all; 0 = only their context ends them
	looked   func()        // called whenever the run looks at its clock; may be nil
}

func (w *samplingWorld) clock() time.Time {
	if w.looked != nil {
		w.looked()
	}
	return time.Now()
}

func (w *samplingWorld) wait(ctx context.Context) bool {
	if w.patience == 0 {
		<-ctx.Done()
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(w.patience):
		return true
	}
}

// Run ends a slow episode, as package rollout does, with status cancelled where its context ends first.
func (w *samplingWorld) Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	ep, err := w.world.Run(ctx, task, spec)
	if err == nil && task.ID[0] == 's' && !w.wait(ctx) {
		ep.Status, ep.Stop = milepost.EpisodeCancelled, milepost.StopCanceled
	}
	return ep, err
}

func (w *samplingWorld) Fill(ctx context.Context, eps []*milepost.Episode, _ time.Duration) error {
	if err := w.tick(); err != nil {
		return err
	}
	for _, ep := range eps {
		switch v := ep.Outcome.Verdict; {
		case lost(ep.Status), v.Status != "":
			continue
		case ep.Task[0] == 'd' && !w.wait(ctx):
			return milepost.Wrap("fill", milepost.KindCanceled, ctx.Err())
		}
		state := milepost.Failed
		if ep.Task[0] == 'e' || ep.Task[0] != 'h' && ep.Attempt%2 == 0 {
			state = milepost.Passed
		}
		p := &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{state}}
		ep.Steps[0].Probe, ep.Outcome.Verdict = p, p
	}
	return nil
}

// newSamplingRun is a run of two updates of two groups of two under the paper's sampling.
func newSamplingRun(t *testing.T, dir string, w *samplingWorld, train ...string) *Runner {
	t.Helper()
	folder, engine := testFolder(t, dir)
	cfg := DefaultConfig()
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.MaxUpdates, cfg.EvalEvery = 2, 2, 2, 0
	cfg.Sampling = credit.DefaultSampling(milepost.BugRepair)
	cfg.Sampling.Oversample = 3
	var tasks []*milepost.Task
	for _, id := range train {
		tasks = append(tasks, &milepost.Task{ID: id, Kind: milepost.BugRepair, Tests: []string{"t"}})
	}
	r, err := NewRunner(cfg, folder, 3, Tasks{Train: train}, tasks, engine, Deps{Rollouts: w, Probes: w, Learner: w, Weights: w, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func eventsOf(t *testing.T, f *Folder) []Event {
	t.Helper()
	records, err := journal.Read(f.Path("journal.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Event, len(records))
	for i, rec := range records {
		if err := json.Unmarshal(rec.Data, &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// trainedGroups are, by update, the groups that the journal's order of judgements makes train: the first that were kept.
func trainedGroups(events []Event, need int) map[int][]string {
	out := map[int][]string{}
	for _, e := range events {
		if e.Type == EventGroupJudged && e.Kept && len(out[e.Update]) < need {
			out[e.Update] = append(out[e.Update], e.Group)
		}
	}
	for _, groups := range out {
		slices.Sort(groups)
	}
	return out
}

// checkSampledRun holds a finished run's folder to what its journal says.
func checkSampledRun(t *testing.T, r *Runner) {
	t.Helper()
	events := eventsOf(t, r.folder)
	count := map[string]int{}
	for _, e := range events {
		switch e.Type {
		case EventEpisodeEnded:
			count[e.Episode]++
		case EventGroupJudged:
			count["judge "+e.Group]++
		case EventFinalised, EventTrained:
			count[fmt.Sprint(e.Type, e.Update)]++
		}
	}
	for what, n := range count {
		if n != 1 {
			t.Errorf("%s happened %d times", what, n)
		}
	}
	want := trainedGroups(events, r.cfg.GroupsPerUpdate)
	for _, e := range events {
		if e.Type == EventFinalised {
			checkSampledBatch(t, r, e, want[e.Update])
		}
	}
	l, err := r.lineage()
	if err != nil {
		t.Fatal(err)
	}
	var state []string
	b, err := os.ReadFile(filepath.Join(l.load, "state"))
	if err := errors.Join(err, json.Unmarshal(b, &state)); err != nil || !slices.Equal(state, []string{"u0001.arrow", "u0002.arrow"}) || len(l.replay) != 0 {
		t.Errorf("the weights hold %v and %d more (%v)", state, len(l.replay), err)
	}
}

func checkSampledBatch(t *testing.T, r *Runner, e Event, want []string) {
	t.Helper()
	records, err := r.folder.ReadEpisodes(updateBatch(e.Update))
	if err != nil {
		t.Fatal(err)
	}
	kept, tokens := map[string]bool{}, int64(0)
	for _, rec := range records {
		if rec.Dropped == "" {
			kept[rec.Episode.Group] = true
			if rec.Episode.Status != milepost.EpisodeCompleted || rec.Credit.Steps[0].Advantage == 0 {
				t.Errorf("%s trains: status %s, credit %+v", rec.Episode.ID, rec.Episode.Status, rec.Credit)
			}
		}
		for _, s := range rec.Episode.Steps {
			tokens += int64(s.TokenEnd - s.TokenStart)
		}
	}
	if got := slices.Sorted(maps.Keys(kept)); !slices.Equal(got, want) || len(want) != r.cfg.GroupsPerUpdate {
		t.Errorf("update %d trains groups %v, the journal says %v", e.Update, got, want)
	}
	var rows []Row
	b, err := os.ReadFile(r.folder.Path(e.Batch))
	if err := errors.Join(err, json.Unmarshal(b, &rows)); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if group, _, _ := strings.Cut(strings.TrimPrefix(row.Episode, "u000"), "/a"); !kept["u000"+group] {
			t.Errorf("update %d trains %s, whose group was not kept", e.Update, row.Episode)
		}
	}
	if len(rows) != e.Rows || len(rows) != r.cfg.GroupsPerUpdate*r.cfg.GroupSize || e.Tokens != tokens {
		t.Errorf("update %d: %d rows, %d tokens; the event says %d and %d", e.Update, len(rows), tokens, e.Rows, e.Tokens)
	}
}

var mixed = []string{"a", "b", "c", "d1", "d2", "d3", "e1", "e2", "f", "g", "h1", "h2", "s1", "s2", "s3"}

// TestSamplingResumesFromCrashes stops a run at its n-th outside call, for every third n, and resumes it.
func TestSamplingResumesFromCrashes(t *testing.T) {
	defer goleak.VerifyNone(t)
	for crash := 1; ; crash += 3 {
		w := &samplingWorld{world: &world{crash: crash, started: map[string]int{}}, patience: 2 * time.Millisecond}
		dir := t.TempDir()
		r := newSamplingRun(t, dir, w, mixed...)
		err := r.Run(context.Background())
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			if crash < 20 {
				t.Fatalf("the run ended before the crash at call %d", crash)
			}
			checkSampledRun(t, r)
			return
		}
		resumeSampled(t, dir, fmt.Sprintf("crash at call %d", crash))
	}
}

// resumeSampled carries a run to its end and checks it: no episode that the journal holds is run again, and no group
// that it calls kept is lost.
func resumeSampled(t *testing.T, dir, what string) {
	t.Helper()
	w := &samplingWorld{world: &world{started: map[string]int{}}, patience: 2 * time.Millisecond}
	r := newSamplingRun(t, dir, w, mixed...)
	var before []Event
	if _, err := os.Stat(r.folder.Path("journal.jsonl")); err == nil {
		before = eventsOf(t, r.folder)
	}
	outstanding := r.Machine().Outstanding()
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	checkSampledRun(t, r)
	for _, c := range outstanding {
		if c.Cancelled && w.started[c.Episode.ID] > 0 {
			t.Errorf("%s: %s was cancelled and is begun again", what, c.Episode.ID)
		}
	}
	after := trainedGroups(eventsOf(t, r.folder), r.cfg.GroupsPerUpdate)
	for u, groups := range trainedGroups(before, r.cfg.GroupsPerUpdate) {
		for _, g := range groups {
			if !slices.Contains(after[u], g) {
				t.Errorf("%s: group %s was kept and is lost", what, g)
			}
		}
	}
	for _, e := range before {
		if e.Type == EventEpisodeEnded && w.started[e.Episode] > 0 {
			t.Errorf("%s: %s had ended and was run again", what, e.Episode)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// TestSamplingResumesFromKills copies the run folder whenever the run looks at its clock, which it does before and
// after each record of the journal: each copy is what kill -9 would have left at that moment. Every third is resumed.
func TestSamplingResumesFromKills(t *testing.T) {
	defer goleak.VerifyNone(t)
	w := &samplingWorld{world: &world{started: map[string]int{}}, patience: time.Second}
	dir, copies := t.TempDir(), t.TempDir()
	var mu sync.Mutex
	taken, last := 0, ""
	w.looked = func() {
		mu.Lock()
		defer mu.Unlock()
		listing := ""
		err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil {
				listing += fmt.Sprint(path, info.Size(), " ")
			}
			return err
		})
		if err != nil || listing == last {
			return
		}
		last = listing
		if err := os.CopyFS(filepath.Join(copies, fmt.Sprint(taken)), os.DirFS(dir)); err != nil {
			t.Error(err)
		}
		taken++
	}
	r := newSamplingRun(t, dir, w, mixed...)
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	cancelled := 0
	for _, e := range eventsOf(t, r.folder) {
		cancelled += int(indicator(e.Status == milepost.EpisodeCancelled || e.Cancelled))
	}
	if taken < 40 || cancelled == 0 {
		t.Errorf("%d moments with %d cancelled; too few to say anything", taken, cancelled)
	}
	for i := 0; i < taken; i += 3 {
		copied := filepath.Join(copies, fmt.Sprint(i))
		relocate(t, copied, dir)
		resumeSampled(t, copied, fmt.Sprintf("killed at moment %d of %d", i, taken))
	}
}

// relocate makes the copy of a run folder name its own model.
func relocate(t *testing.T, dir, was string) {
	t.Helper()
	path := filepath.Join(dir, "run", "run.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(b), was, dir)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSurplusIsCancelled: once enough groups are kept the contexts of what is under way end, an episode's and a
// judgement's; nothing of it trains, is in a mean or goes on running, and what it sampled counts.
func TestSurplusIsCancelled(t *testing.T) {
	defer goleak.VerifyNone(t)
	w := &samplingWorld{world: &world{started: map[string]int{}}} // without patience: only cancelling ends what is slow
	r := newSamplingRun(t, t.TempDir(), w, "a", "b", "s", "d")
	r.cfg.MaxUpdates, r.machine.cfg.MaxUpdates = 1, 1
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(r.Run(ctx), r.Close()); err != nil {
		t.Fatal(err)
	}
	records, err := r.folder.ReadEpisodes("u0001")
	if err != nil {
		t.Fatal(err)
	}
	cancelled := map[string]int{}
	for _, rec := range records {
		if task := rec.Episode.Task; task == "s" || task == "d" {
			cancelled[task]++
			if rec.Episode.Status != milepost.EpisodeCancelled || rec.Dropped != "group cancelled: enough were kept" || !rec.Credit.Excluded {
				t.Errorf("%s: status %s, dropped %q, credit %+v", rec.Episode.ID, rec.Episode.Status, rec.Dropped, rec.Credit)
			}
		} else if rec.Dropped != "" {
			t.Errorf("%s: dropped as %q", rec.Episode.ID, rec.Dropped)
		}
	}
	if cancelled["s"] != 2 || cancelled["d"] != 2 || len(records) != 8 {
		t.Errorf("cancelled %v of %d episodes", cancelled, len(records))
	}
	metrics, err := r.folder.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"groups_sampled": 4, "groups_rejected": 0, "groups_cancelled": 2, "sampling_rounds": 1, "tasks_retired": 0,
		"episodes": 4, "episodes_cancelled": 4, "episodes_infra": 0, "groups": 2, "resolved_rate": .5, "groups_without_signal": 0} {
		if got, ok := metrics[1][name]; !ok || got != want {
			t.Errorf("%s is %g (there: %v), want %g", name, got, ok, want)
		}
	}
	given := 0
	for _, e := range eventsOf(t, r.folder) {
		given += int(indicator(e.Cancelled))
	}
	if given != 1 || r.Machine().Tokens() != 8 {
		t.Errorf("%d judgements given up, %d tokens; want 1 and 8", given, r.Machine().Tokens())
	}
}

// TestRejectedGroupsAreReplaced: dropped groups stay on record with their reason and are in the means; the tasks retire
// by the paper's rules, and a run whose tasks are all retired ends and says so.
func TestRejectedGroupsAreReplaced(t *testing.T) {
	w := &samplingWorld{world: &world{started: map[string]int{}}}
	r := newSamplingRun(t, t.TempDir(), w, "e1", "e2", "h1", "a", "h2", "e3", "b")
	r.machine.cfg.Sampling.Oversample = 1
	var lines []string
	r.deps.Report = func(s Status) { lines = append(lines, s.Line) }
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	records, err := r.folder.ReadEpisodes("u0001")
	if err != nil {
		t.Fatal(err)
	}
	fates := map[string]string{}
	for _, rec := range records {
		fates[rec.Episode.Task] = rec.Dropped
	}
	for task, dropped := range fates {
		if want := map[bool]string{true: "", false: "group without signal by outcome"}[task == "a" || task == "b"]; dropped != want {
			t.Errorf("task %s was dropped as %q, want %q", task, dropped, want)
		}
	}
	metrics, err := r.folder.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	m := metrics[1]
	if len(fates) < 3 || m["groups_rejected"] != float64(len(fates)-2) || m["groups"] != float64(len(fates)) || m["episodes"] != float64(len(records)) || m["sampling_rounds"] < 2 {
		t.Errorf("fates %v, metrics %v", fates, m)
	}
	if got := metrics[2]["tasks_retired"]; got < 3 || int(got) != r.Machine().Retired() {
		t.Errorf("%g tasks retired, the machine says %d", got, r.Machine().Retired())
	}

	r = newSamplingRun(t, t.TempDir(), w, "e1", "e2", "e3")
	r.deps.Report = func(s Status) { lines = append(lines, s.Line) }
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(r.StopReason(), "no_tasks: all 3 training tasks are retired") || !slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "batch without any signal: no update\n0 of 2 groups were kept (no_tasks: ")
	}) {
		t.Errorf("stopped by %q; lines %q", r.StopReason(), lines)
	}
}

// TestOutageStopsASampledRun: where infrastructure loses every episode the run stops, instead of replacing lost groups
// without end, and goes on afterwards.
func TestOutageStopsASampledRun(t *testing.T) {
	dir := t.TempDir()
	w := &samplingWorld{world: &world{started: map[string]int{}}, patience: time.Millisecond}
	down := &outageWorld{world: w.world, down: true}
	for range 2 {
		r := newSamplingRun(t, dir, w, mixed...)
		r.deps.Rollouts = down
		err := errors.Join(r.Run(context.Background()), r.Close())
		if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "every episode of u0001 was lost") {
			t.Fatalf("during the outage: %v", err)
		}
	}
	if n := len(w.started); n > 200 {
		t.Errorf("%d episodes were begun during the outage", n)
	}
	r := newSamplingRun(t, dir, w, mixed...)
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatalf("after the outage: %v", err)
	}
	if r.machine.Phase() != PhaseDone || r.machine.Update() != 2 || r.machine.Retired() > 5 {
		t.Errorf("phase %s, update %d, %d retired", r.machine.Phase(), r.machine.Update(), r.machine.Retired())
	}
}

// TestOverlongEpisodesEarnLess: the length terms of credit.overlong reach the reward, the record and the metrics of a
// run; whether an episode resolved its task they do not touch.
func TestOverlongEpisodesEarnLess(t *testing.T) {
	r := newTestRun(t, t.TempDir(), &world{started: map[string]int{}}, 1)
	cfg := credit.Default()
	cfg.Overlong = credit.Overlong{MaxTurns: 2, TurnsBefore: 0} // one turn of two costs a half
	var err error
	if r.engine, err = credit.New(cfg); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	records, err := r.folder.ReadEpisodes("u0001")
	if err != nil || len(records) != 4 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, rec := range records {
		if o := rec.Episode.Outcome; o.Reward != indicator(rec.Episode.Attempt%2 == 0)-.5 || o.Resolved != (rec.Episode.Attempt%2 == 0) {
			t.Errorf("%s: %+v", rec.Episode.ID, o)
		}
	}
	if m, err := r.folder.Metrics(); err != nil || m[1]["reward_mean"] != 0 || m[1]["resolved_rate"] != .5 {
		t.Errorf("metrics %v (%v)", m, err)
	}
}

// TestOutageInTheMidstOfASampledUpdate: groups that were kept before do not hide an outage from the guard.
func TestOutageInTheMidstOfASampledUpdate(t *testing.T) {
	w := &samplingWorld{world: &world{started: map[string]int{}}, patience: time.Millisecond}
	r := newSamplingRun(t, t.TempDir(), w, "a", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8", "h9")
	down := &laterOutage{samplingWorld: w, after: 3}
	r.deps.Rollouts, r.cfg.Concurrency, r.cfg.MaxRetries, r.machine.cfg.MaxRetries = down, 1, 0, 0
	r.slots = make(chan struct{}, 1)
	err := errors.Join(r.Run(context.Background()), r.Close())
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "4 episodes of u0001 in a row were lost to infrastructure") {
		t.Errorf("got %v", err)
	}
}

// laterOutage loses every episode after so many.
type laterOutage struct {
	*samplingWorld
	mu    sync.Mutex
	begun int
	after int
}

func (w *laterOutage) Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	ep, err := w.samplingWorld.Run(ctx, task, spec)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun++; err == nil && w.begun > w.after {
		ep.Status, ep.Error = milepost.EpisodeInfra, "no endpoint is left"
	}
	return ep, err
}

// samplingCritic is samplingWorld with the value head of critic.
type samplingCritic struct {
	*samplingWorld
	values *critic
	mu     sync.Mutex
	under  int
}

func (c *samplingCritic) Values(ctx context.Context, path, sum string) ([][]float32, error) {
	c.mu.Lock()
	c.under++
	if c.under > 1 {
		c.mu.Unlock()
		return nil, errors.New("two calls at the same time")
	}
	c.mu.Unlock()
	defer func() { c.mu.Lock(); c.under--; c.mu.Unlock() }()
	return c.values.Values(ctx, path, sum)
}

// TestSampledGroupsHaveValues: under an estimator with values a group has its own when it is judged, which are recorded,
// trained on and whitened over the groups that train, and asked for no more when the update is finalised.
func TestSampledGroupsHaveValues(t *testing.T) {
	w := &samplingWorld{world: &world{started: map[string]int{}}, patience: 2 * time.Millisecond}
	c := &samplingCritic{samplingWorld: w, values: &critic{world: w.world}}
	r := newSamplingRun(t, t.TempDir(), w, mixed...)
	r.engine, r.deps.Learner = gaeEngine(t), c
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	judged := 0
	for _, e := range eventsOf(t, r.folder) {
		judged += int(indicator(e.Type == EventGroupJudged))
	}
	if c.values.asked == 0 || c.values.asked > judged {
		t.Errorf("values were asked for %d times, for %d judged groups", c.values.asked, judged)
	}
	for u := 1; u <= 2; u++ {
		records, err := r.folder.ReadEpisodes(updateBatch(u))
		if err != nil {
			t.Fatal(err)
		}
		rows := map[string]Row{}
		for _, row := range readRows(t, r.folder.Path("batches", updateBatch(u)+".arrow")) {
			rows[row.Episode] = row
		}
		sum := float32(0)
		for _, rec := range records {
			if rec.Dropped != "" {
				continue
			}
			row := rows[rec.Episode.ID]
			if want := float32(u-1) + .5; len(rec.Values) != 1 || rec.Values[0] != want || !slices.Equal(row.Values, []float32{0, want}) {
				t.Errorf("%s: values %v, row %v, want %v", rec.Episode.ID, rec.Values, row.Values, want)
			}
			if float32(rec.Credit.Steps[0].Advantage) != row.Advantages[1] {
				t.Errorf("%s: credit %+v, row %v", rec.Episode.ID, rec.Credit, row.Advantages)
			}
			sum += row.Advantages[1] - float32(rec.Credit.Steps[0].P)
		}
		if gaeEngine(t).Config().GAEWhiten && (sum > 1e-5 || sum < -1e-5) {
			t.Errorf("update %d: whitened advantages sum to %g over what trains, want 0", u, sum)
		}
	}
}

// TestSampledWhiteningLeavesOutWhatDoesNotTrain: reinforce_pp_baseline is whitened over the kept groups alone.
func TestSampledWhiteningLeavesOutWhatDoesNotTrain(t *testing.T) {
	w := &samplingWorld{world: &world{started: map[string]int{}}, patience: 2 * time.Millisecond}
	r := newSamplingRun(t, t.TempDir(), w, "e1", "h1", "a", "h2", "b", "e2", "c", "f")
	cfg := credit.Default()
	cfg.Estimator, cfg.Milestone.Enabled = "reinforce_pp_baseline", false
	var err error
	if r.engine, err = credit.New(cfg); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	records, err := r.folder.ReadEpisodes("u0001")
	if err != nil {
		t.Fatal(err)
	}
	trained, dropped := 0, 0
	for _, rec := range records {
		switch {
		case rec.Dropped == "":
			trained++
			// R-mean is +-1/2 over four tokens: the variance is 1/3, and so A is +-sqrt(3)/2.
			if a := rec.Credit.Steps[0].AOut; a*a < .7499 || a*a > .7501 {
				t.Errorf("%s: A_out %g", rec.Episode.ID, a)
			}
		case !rec.Credit.Excluded:
			dropped++
			if a := rec.Credit.Steps[0].AOut; a != 0 {
				t.Errorf("%s: A_out %g of a dropped group", rec.Episode.ID, a)
			}
		}
	}
	if trained != 4 || dropped == 0 {
		t.Errorf("%d trained, %d dropped", trained, dropped)
	}
}
