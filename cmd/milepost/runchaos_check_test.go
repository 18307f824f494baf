package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// checkLineage holds a finished run, however often it died, to what kills must not break, by its files alone:
//   - it made as many updates as it was to make, each trained once;
//   - every attempt that was dispatched ended, and counts in the batch of its update exactly once, none lost to
//     infrastructure;
//   - the surviving weights hold the batches of all updates in order, each once, and no episode stands in two of them;
//   - sampler and trainer agreed on every batch.
//
// It returns what the run consists of.
func checkLineage(t *testing.T, dir string) string {
	t.Helper()
	folder := &orchestrator.Folder{Dir: dir}
	h, err := folder.History()
	if err != nil || h.Updates != chaosUpdates || h.Stop == "" {
		t.Errorf("%d updates, stopped by %q, %v; want %d and a reason", h.Updates, h.Stop, err, chaosUpdates)
	}
	ended := map[string]int{}
	var batches []orchestrator.Event
	for _, e := range events(t, dir) {
		switch e.Type {
		case orchestrator.EventEpisodeEnded:
			if ended[e.Episode]++; ended[e.Episode] > 1 {
				t.Errorf("episode %s ended twice", e.Episode)
			}
		case orchestrator.EventFinalised:
			if e.Rows > 0 {
				batches = append(batches, e)
			}
		}
	}
	for u := 1; u <= chaosUpdates; u++ {
		checkBatch(t, folder, u, ended)
	}
	trained := map[string]string{} // episode: its batch
	var held []string
	for _, b := range batches {
		name := strings.TrimSuffix(filepath.Base(b.Batch), ".arrow")
		held = append(held, name)
		for _, ep := range episodesOf(t, folder.Path(b.Batch)) {
			if other, ok := trained[ep]; ok && other != name {
				t.Errorf("episode %s is trained by %s and by %s", ep, other, name)
			}
			if trained[ep] = name; ended[ep] != 1 {
				t.Errorf("episode %s of %s never ended", ep, name)
			}
		}
	}
	if got := heldBatches(t, folder); !slices.Equal(got, held) {
		t.Errorf("the weights hold the batches %v; the journal has %v", got, held)
	}
	checkAgreement(t, folder)
	return fmt.Sprintf("%d starts, %d episodes ended, %d trained in %d batches", h.Epochs, len(ended), len(trained), len(held))
}

// retryMark is what a further try of an episode has at the end of its id.
var retryMark = regexp.MustCompile(`\+r\d+$`)

// checkBatch expects every attempt of every group of an update once, with an end of its own.
func checkBatch(t *testing.T, folder *orchestrator.Folder, update int, ended map[string]int) {
	t.Helper()
	name := fmt.Sprintf("u%04d", update)
	records, err := folder.ReadEpisodes(name)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range records {
		ep := r.Episode
		attempt := retryMark.ReplaceAllString(ep.ID, "")
		if seen[attempt] || !strings.HasPrefix(ep.ID, name+"/") || ended[ep.ID] != 1 {
			t.Errorf("%s holds %s, whose attempt is there already: %v, ended %d times", name, ep.ID, seen[attempt], ended[ep.ID])
		}
		if seen[attempt] = true; ep.Status == milepost.EpisodeInfra || ep.Status == milepost.EpisodeCancelled {
			t.Errorf("%s is lost: %s %s", ep.ID, ep.Status, ep.Error)
		}
	}
	if len(seen) != e2eGroups*e2eGroup {
		t.Errorf("%s holds %d attempts of %d", name, len(seen), e2eGroups*e2eGroup)
	}
}

// heldBatches are the batches that the newest checkpoint says its weights hold.
func heldBatches(t *testing.T, folder *orchestrator.Folder) []string {
	t.Helper()
	all, err := filepath.Glob(folder.Path("checkpoints", "*", "trainer.json"))
	if err != nil || len(all) == 0 {
		t.Fatalf("checkpoints: %v, %v", all, err)
	}
	b, err := os.ReadFile(slices.Max(all))
	if err != nil {
		t.Fatal(err)
	}
	var about struct {
		BatchIDs []string `json:"batch_ids"`
	}
	if err := json.Unmarshal(b, &about); err != nil {
		t.Fatal(err)
	}
	return about.BatchIDs
}

// episodesOf reads whose rows a batch file holds.
func episodesOf(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := ipc.NewFileReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []string
	for i := range r.NumRecords() {
		record, err := r.RecordBatchAt(i)
		if err != nil {
			t.Fatal(err)
		}
		column := record.Column(record.Schema().FieldIndices("episode")[0]).(*array.String)
		for k := range column.Len() {
			out = append(out, column.Value(k))
		}
		record.Release()
	}
	return out
}

// checkAgreement expects what was trained to be what the sampler's weights said.
func checkAgreement(t *testing.T, folder *orchestrator.Folder) {
	t.Helper()
	metrics, err := folder.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	for u, m := range metrics {
		if gap, ok := m["logprob_gap_mean"]; ok && !(gap < 1e-5) {
			t.Errorf("update %d: mean logprob gap %g", u, gap)
		}
	}
}
