package orchestrator

import (
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// TestRoutesAreOfTrainingAlone: the rows of a batch carry the routes of their samples; an evaluation's episodes are stored without.
func TestRoutesAreOfTrainingAlone(t *testing.T) {
	routed := func() *milepost.Episode {
		return &milepost.Episode{
			ID: "e", Status: milepost.EpisodeCompleted, Steps: []milepost.Step{{TokenStart: 1, TokenEnd: 3}},
			Samples: []milepost.Sample{{Tokens: []int32{1, 2, 3}, Logprobs: make([]float32, 3), Versions: []int32{-1, 0, 0}, Steps: []int32{-1, 0, 0},
				Routes: &milepost.Routes{Layers: 1, TopK: 2, Size: 1, IDs: []byte{0, 1, 2, 3}}}},
		}
	}
	rows := episodeRows(routed(), milepost.EpisodeCredit{Steps: make([]milepost.StepCredit, 1)}, nil)
	if len(rows) != 1 || rows[0].Routes.Tokens() != 2 {
		t.Fatalf("rows %+v", rows)
	}
	folder, err := OpenFolder(t.TempDir(), Header{Name: "r"})
	if err != nil {
		t.Fatal(err)
	}
	for purpose, want := range map[Purpose]int{PurposeTrain: 2, Purpose("heldout-before"): 0} {
		c := Command{Type: CommandEpisode, Episode: EpisodeSpec{ID: "e", Update: 1, Purpose: purpose}}
		r := &Runner{folder: folder, batches: map[string]*batch{}, deps: Deps{Probes: &world{}, Now: time.Now}}
		if err := r.openBatches([]Command{c}); err != nil {
			t.Fatal(err)
		}
		if err := r.keep(completion{command: c, episode: routed()}); err != nil {
			t.Fatal(err)
		}
		b := r.batches[r.batchOf(c)]
		if err := b.part.close(); err != nil {
			t.Fatal(err)
		}
		part, stored, err := openPart(folder, b.name)
		if err != nil || len(stored) != 1 || stored[0].Episode.Samples[0].Routes.Tokens() != want {
			t.Errorf("%s: stored %+v: %v; want routes of %d tokens", purpose, stored, err, want)
		}
		part.close()
	}
}
