package explain

import (
	"fmt"
	"math"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Episode is one episode with the way its credit came about.
type Episode struct {
	Batch    string                 `json:"batch,omitempty"` // of the run folder; "" for a case
	ID       string                 `json:"id"`
	Group    string                 `json:"group"`
	Task     string                 `json:"task"`
	Kind     milepost.TaskKind      `json:"kind"`
	Status   milepost.EpisodeStatus `json:"status"`
	Stop     milepost.StopReason    `json:"stop,omitempty"`
	Error    string                 `json:"error,omitempty"` // for infra_error
	Excluded bool                   `json:"excluded"`        // in no statistic, without credit
	Resolved bool                   `json:"resolved"`
	Verdict  string                 `json:"verdict"` // what the final tree passes, in words
	Reward   float64                `json:"reward"`  // that the estimator got

	Estimator string              `json:"estimator"`
	Rule      string              `json:"rule"` // of A_out, in one line
	Weights   Weights             `json:"weights"`
	Mode      string              `json:"mode"`
	Baseline  credit.BaselineNote `json:"baseline"`
	Earned    *credit.RewardNote  `json:"reward_terms,omitempty"` // nil where the reward was given: in a case, or ungraded
	GroupNote credit.GroupNote    `json:"group_statistics"`

	KeepGroup string   `json:"keep_group,omitempty"` // the criterion in force; "" for a case
	Dropped   string   `json:"dropped,omitempty"`    // why the episode did not train, as the run recorded it
	Remarks   []string `json:"remarks,omitempty"`    // what the reader should know before believing the rest
	Steps     []Step   `json:"steps"`
}

// Weights are the numbers of the credit rules in force for the episode's task, and the terms that are switched off.
type Weights struct {
	Outcome        float64  `json:"w_out"`
	Verification   float64  `json:"w_ver"`
	Navigation     float64  `json:"w_nav"`
	Format         float64  `json:"w_format"`
	BackwardLambda float64  `json:"backward_lambda"`
	BackwardGamma  float64  `json:"backward_gamma"`
	Centred        bool     `json:"process_baseline"` // p is centred over the group
	Off            []string `json:"off,omitempty"`
}

// Source is what an explanation is made from: episodes with their credit, and the rules that gave it.
type Source struct {
	Rules     credit.Config
	Inputs    []credit.Input           // all of the episode's group at least
	Credits   []milepost.EpisodeCredit // of Inputs, in the same order
	KeepGroup string                   // criterion of dynamic sampling; "" where there is none
	Batch     string                   // "" for a case
}

// New explains episode i of a source. Errors are those of credit, of kind invalid.
func New(s Source, i int) (Episode, error) {
	const op = "explain: episode"
	engine, err := credit.New(s.Rules)
	if err != nil {
		return Episode{}, err
	}
	if len(s.Inputs) != len(s.Credits) || i < 0 || i >= len(s.Inputs) {
		return Episode{}, milepost.E(op, milepost.KindInvalid, "episode %d of %d inputs and %d credits", i, len(s.Inputs), len(s.Credits))
	}
	in, earned := s.Inputs[i], s.Credits[i]
	note, err := engine.Explain(in)
	if err != nil {
		return Episode{}, err
	}
	ep := in.Episode
	if len(earned.Steps) != len(note.Steps) {
		return Episode{}, milepost.E(op, milepost.KindCorrupt, "episode %s has credit for %d steps and %d to explain", ep.ID, len(earned.Steps), len(note.Steps))
	}
	var inputs []credit.Input
	var credits []milepost.EpisodeCredit
	for k, other := range s.Inputs {
		if other.Episode.Group == ep.Group {
			inputs, credits = append(inputs, other), append(credits, s.Credits[k])
		}
	}
	e := Episode{
		Batch: s.Batch, ID: ep.ID, Group: ep.Group, Task: ep.Task, Kind: in.Task.Kind, Status: ep.Status, Stop: ep.Stop, Error: ep.Error,
		Excluded: earned.Excluded, Resolved: ep.Outcome.Resolved, Verdict: Passes(ep.Outcome.Verdict), Reward: ep.Outcome.Reward,
		Estimator: s.Rules.Estimator, Rule: credit.Rule(s.Rules.Estimator), Weights: weights(s.Rules, note), Mode: note.Mode,
		Baseline: note.Baseline, GroupNote: engine.ExplainGroup(inputs, credits), KeepGroup: s.KeepGroup, Steps: steps(in, note, earned),
	}
	if s.Batch != "" && ep.Outcome.Graded {
		e.Earned = &note.Reward
		if math.Abs(note.Reward.Total-e.Reward) > tolerance {
			e.Remarks = append(e.Remarks, fmt.Sprintf("the recorded reward is %s, the saved configuration gives %s", number(e.Reward), number(note.Reward.Total)))
		}
	}
	return e, nil
}

// tolerance is how far a recorded number may lie from the recomputed one.
const tolerance = 1e-9

func weights(c credit.Config, note credit.Explanation) Weights {
	m := c.Milestone
	w := Weights{Outcome: c.OutcomeWeight, Verification: note.WVer, Navigation: note.WNav, Format: m.WFormat,
		BackwardLambda: m.BackwardLambda, BackwardGamma: m.BackwardGamma, Centred: c.ProcessBaseline == credit.BaselineGroupMean}
	if !m.Enabled {
		w.Off = []string{"milestone"}
		return w
	}
	for _, t := range []struct {
		name string
		on   bool
	}{{"verification", m.Verification}, {"navigation", m.Navigation}, {"format", m.Format}} {
		if !t.on {
			w.Off = append(w.Off, t.name)
		}
	}
	return w
}
