package ablation_test

import (
	"fmt"

	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/ablation"
)

// Two arms, three seeds, four held-out tasks with two attempts each; arm b resolves one more attempt of task 4 in two of
// the seeds.
func ExampleAnalyse() {
	run := func(seed int64, last ...float64) ablation.Run {
		tasks := map[string][]float64{"task 1": {1, 1}, "task 2": {0, 1}, "task 3": {0, 0}, "task 4": last}
		return ablation.Run{Seed: seed, Finished: true, Final: &orchestrator.Evaluation{Tasks: tasks},
			FinalUpdate: 1, Points: []ablation.Point{point(tasks)}}
	}
	s := ablation.Study{
		Name: "example", Reference: "a", Options: ablation.DefaultOptions(),
		Arms: []ablation.Arm{
			{Name: "a", Runs: []ablation.Run{run(1, 0, 0), run(2, 0, 0), run(3, 0, 1)}},
			{Name: "b", Runs: []ablation.Run{run(1, 0, 1), run(2, 0, 1), run(3, 0, 1)}},
		},
	}
	r, err := ablation.Analyse(s)
	if err != nil {
		fmt.Println(err)
		return
	}
	c := r.Compare("b", ablation.AtEpisodes)
	fmt.Printf("b − a: %.3f over %d seeds and %d tasks: %s\n", c.Difference.Value, len(c.Difference.Seeds), c.Difference.Tasks, c.Verdict)
	// Output: b − a: 0.083 over 3 seeds and 4 tasks: not told apart
}

// point is the end of a run that was trained by one update of 32 episodes.
func point(tasks map[string][]float64) ablation.Point {
	p := ablation.Point{Update: 1, Episodes: 32, Tokens: 40000, Tasks: map[string]float64{}}
	mean := 0.0
	for id, rewards := range tasks {
		p.Tasks[id] = (rewards[0] + rewards[1]) / 2
		mean += p.Tasks[id] / 4
	}
	p.Heldout = &mean
	return p
}
