package orchestrator

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/stats"
)

// Evaluation is the result of one evaluation, as stored in evals/NAME.json.
type Evaluation struct {
	Name   string               `json:"name"`
	Rate   float64              `json:"rate"` // mean over tasks of the task's resolved share
	Low    float64              `json:"low"`  // 95 % bootstrap interval over tasks
	High   float64              `json:"high"`
	Passed float64              `json:"pass_rate"` // mean over tasks of the share of tests that pass at the end, whether or not all do
	Graded int                  `json:"graded"`
	Infra  int                  `json:"infra"` // attempts lost to infrastructure, in no statistic
	Tasks  map[string][]float64 `json:"tasks"` // rewards of each task's graded attempts
	Turns  float64              `json:"turns_mean"`
	Tokens float64              `json:"tokens_sampled_mean"`
	Active float64              `json:"active_s"`
}

// summarise computes an evaluation from graded episodes.
func summarise(name string, eps []*milepost.Episode) Evaluation {
	out := Evaluation{Name: name, Tasks: map[string][]float64{}}
	var turns, tokens float64
	shares := map[string][]float64{}
	for _, ep := range eps {
		if !ep.Outcome.Graded {
			out.Infra++
			continue
		}
		out.Graded++
		out.Tasks[ep.Task] = append(out.Tasks[ep.Task], indicator(ep.Outcome.Resolved))
		shares[ep.Task] = append(shares[ep.Task], passedShare(ep))
		turns += float64(len(ep.Steps))
		tokens += float64(ep.Sampled())
	}
	out.Turns, out.Tokens = ratio(turns, float64(out.Graded)), ratio(tokens, float64(out.Graded))
	out.Passed = stats.Mean(taskMeans(shares))
	rates := taskMeans(out.Tasks)
	out.Rate, out.Low, out.High = stats.Bootstrap(rates)
	return out
}

// part says of which task set the evaluation is.
func (e Evaluation) part() Part {
	if strings.HasPrefix(e.Name, validationPrefix) {
		return PartValidation
	}
	return PartHeldout
}

// metrics are its figures by the names of docs/metrics.md.
func (e Evaluation) metrics() map[string]float64 {
	return map[string]float64{"resolved_rate": e.Rate, "resolved_low": e.Low, "resolved_high": e.High, "pass_rate": e.Passed,
		"graded": float64(e.Graded), "episodes_infra": float64(e.Infra), "turns_mean": e.Turns, "tokens_sampled_mean": e.Tokens}
}

// taskMeans returns the mean of each task, in the order of the task ids.
func taskMeans(tasks map[string][]float64) []float64 {
	var out []float64
	for _, id := range slices.Sorted(maps.Keys(tasks)) {
		out = append(out, stats.Mean(tasks[id]))
	}
	return out
}

// Gain is the paired difference of two evaluations over the tasks that both hold, with its 95 % bootstrap interval
// (paired by task; 10,000 resamples; fixed seed).
func Gain(before, after Evaluation) (gain, low, high float64, tasks int) {
	var d []float64
	ids := make([]string, 0, len(before.Tasks))
	for id := range before.Tasks {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		if a, ok := after.Tasks[id]; ok {
			d = append(d, stats.Mean(a)-stats.Mean(before.Tasks[id]))
		}
	}
	gain, low, high = stats.Bootstrap(d)
	return gain, low, high, len(d)
}

// Evaluation reads a stored evaluation.
func (f *Folder) Evaluation(name string) (Evaluation, error) {
	var e Evaluation
	b, err := os.ReadFile(f.Path("evals", name+".json"))
	if err != nil {
		return e, milepost.Wrap("orchestrator: read evaluation", milepost.KindNotFound, err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, milepost.E("orchestrator: read evaluation", milepost.KindCorrupt, "%s: %v", f.Path("evals", name+".json"), err)
	}
	return e, nil
}
