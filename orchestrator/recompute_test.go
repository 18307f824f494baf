package orchestrator

import (
	"context"
	"reflect"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// TestRecomputeGivesTheCreditThatWasTrainedOn runs a whole run and derives its credit again from the folder.
func TestRecomputeGivesTheCreditThatWasTrainedOn(t *testing.T) {
	r := newTestRun(t, t.TempDir(), &world{started: map[string]int{}}, 1)
	defer r.Close()
	if err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	n, credited := 0, 0
	err = r.folder.Recompute(engine, func(batch string, got credit.Result) error {
		records, err := r.folder.ReadEpisodes(batch)
		for i, rec := range records {
			if !reflect.DeepEqual(*rec.Credit, got.Episodes[i]) {
				t.Errorf("%s: recorded %+v, recomputed %+v", rec.Episode.ID, *rec.Credit, got.Episodes[i])
			}
			for _, s := range got.Episodes[i].Steps {
				if s.Advantage != 0 {
					credited++
				}
			}
		}
		n++
		return err
	})
	if err != nil || n != 4 || credited == 0 {
		t.Errorf("%d batches, %d steps with advantage, error %v; want 4, some, none", n, credited, err)
	}
	if err := r.folder.writeTasks([]*milepost.Task{{ID: "other"}}); err != nil {
		t.Fatal(err)
	}
	err = r.folder.Recompute(engine, func(string, credit.Result) error { return nil })
	if milepost.KindOf(err) != milepost.KindCorrupt {
		t.Errorf("an episode of an unknown task: %v", err)
	}
}
