package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
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

// TestPlainWhiteningLeavesOutWhatDoesNotTrain: without dynamic sampling too a group without signal is dropped before credit
// is finished, so it neither trains by a mean that others have nor moves it.
func TestPlainWhiteningLeavesOutWhatDoesNotTrain(t *testing.T) {
	cfg := credit.Default()
	cfg.Estimator, cfg.Milestone.Enabled = "reinforce_pp_baseline", false
	engine, err := credit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{cfg: Config{Sampling: credit.PlainSampling()}, engine: engine, deps: Deps{Now: time.Now}}
	var inputs []credit.Input
	task := &milepost.Task{ID: "t"}
	for i, reward := range []float64{1, 0, 1, 0, 1, 1} {
		group := "u0001/g00"
		if i >= 4 {
			group = "u0001/g01" // of equal outcome, and long: in a mean over all tokens it would weigh most
		}
		inputs = append(inputs, credit.Input{Task: task, Episode: &milepost.Episode{
			ID: fmt.Sprintf("%s/a%02d", group, i), Group: group, Task: "t", Status: milepost.EpisodeCompleted,
			Outcome: milepost.Outcome{Graded: true, Reward: reward},
			Steps:   []milepost.Step{{TokenEnd: 1 + 9*(i/4)}},
		}})
	}
	assigned, keep, _, err := r.creditOf(context.Background(), Command{Update: 1}, inputs)
	if err != nil {
		t.Fatal(err)
	}
	if !keep["u0001/g00"] || keep["u0001/g01"] {
		t.Errorf("kept are %v", keep)
	}
	for i, want := range []float64{1, -1, 1, -1, 0, 0} { // R-mean is +-1/2 over four tokens: the variance is 1/3
		if got := assigned.Episodes[i].Steps[0].AOut; math.Abs(got-want*math.Sqrt(.75)) > 1e-6 {
			t.Errorf("%s: A_out %g, want %g", inputs[i].Episode.ID, got, want*math.Sqrt(.75))
		}
	}
}
