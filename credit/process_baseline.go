package credit

import (
	"github.com/milepost-rl/milepost"
	"gonum.org/v1/gonum/stat"
)

// Process baseline, an extension beyond the paper, off by default: `process_baseline: group_mean` subtracts from each
// step's p the mean over the group of the episode-mean p, so that acting at all is neither rewarded nor punished on
// average. Episodes without steps have no mean and are left out of it.

// subtractGroupMean centres p over the episodes of one group in place.
func subtractGroupMean(episodes [][]milepost.StepCredit) {
	var means []float64
	for _, steps := range episodes {
		if len(steps) == 0 {
			continue
		}
		sum := 0.0
		for t := range steps {
			sum += steps[t].P
		}
		means = append(means, sum/float64(len(steps)))
	}
	if len(means) == 0 {
		return
	}
	mean := stat.Mean(means, nil)
	for _, steps := range episodes {
		for t := range steps {
			steps[t].P -= mean
		}
	}
}
