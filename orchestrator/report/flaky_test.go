package report

import (
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
)

// TestFlakyTestsAreTold: what a run left out stands among the report's warnings, by task and name.
func TestFlakyTestsAreTold(t *testing.T) {
	f, err := orchestrator.OpenFolder(t.TempDir(), orchestrator.Header{Name: "flaky", Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{stats: map[string]float64{}}
	tasks := []*milepost.Task{{ID: "steady", Tests: []string{"a"}}, {ID: "wobbly", Tests: []string{"a", "b", "c"}, Flaky: []string{"b"}}}
	r, err := orchestrator.NewRunner(orchestrator.DefaultConfig(), f, 1, orchestrator.Tasks{Train: []string{"steady", "wobbly"}}, tasks, engine,
		orchestrator.Deps{Rollouts: w, Probes: w, Learner: w, Weights: w, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Warnings) != 1 || !strings.HasPrefix(d.Warnings[0].Text, "task wobbly: 1 of 3 tests are flaky") || !strings.HasSuffix(d.Warnings[0].Text, ": b") {
		t.Errorf("warnings %+v", d.Warnings)
	}
}
