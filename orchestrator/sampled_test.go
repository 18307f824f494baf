package orchestrator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

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
