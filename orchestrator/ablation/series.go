package ablation

import (
	"maps"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/milepost-rl/milepost/orchestrator"
)

// taskRates is the resolved share of each task.
func taskRates(e orchestrator.Evaluation) map[string]float64 {
	out := make(map[string]float64, len(e.Tasks))
	for id, rewards := range e.Tasks {
		out[id] = stat.Mean(rewards, nil)
	}
	return out
}

// meanOf is the mean over tasks, summed in the order of their ids so that it is the same every time.
func meanOf(tasks map[string]float64) float64 {
	sum := 0.0
	for _, id := range slices.Sorted(maps.Keys(tasks)) {
		sum += tasks[id]
	}
	return sum / float64(len(tasks))
}
