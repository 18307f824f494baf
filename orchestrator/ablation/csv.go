package ablation

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// sheet is a CSV file: a line of names, then values at full precision. A value that there is not is empty; rates and
// differences are in [0,1] and [-1,1], times in seconds.
type sheet struct {
	name string
	rows [][]string
}

func (s *sheet) add(cells ...[]string) {
	var row []string
	for _, c := range cells {
		row = append(row, c...)
	}
	s.rows = append(s.rows, row)
}

func (s sheet) bytes() ([]byte, error) {
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	if err := w.WriteAll(s.rows); err != nil {
		return nil, milepost.Wrap("ablation: write "+s.name, milepost.KindInternal, err)
	}
	return buf.Bytes(), nil
}

// WriteCSV writes arms.csv, runs.csv, curves.csv (a line a point of a run), comparisons.csv and search.csv into dir, each
// whole or not at all. Columns NAME_low and NAME_high are the bootstrap interval of column NAME, NAME_t_low and
// NAME_t_high the t interval over seeds.
func WriteCSV(dir string, s Study, r Result) error {
	if err := r.of(s); err != nil {
		return err
	}
	for _, t := range sheets(s, r) {
		b, err := t.bytes()
		if err != nil {
			return err
		}
		if err := writeFile(dir, t.name, b); err != nil {
			return err
		}
	}
	return nil
}

func sheets(s Study, r Result) []sheet {
	return []sheet{armSheet(s, r), runSheet(s), curveSheet(s), comparisonSheet(s, r), searchSheet(s)}
}

func cells(s ...string) []string { return s }

func exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func optional(v *float64) string {
	if v == nil {
		return ""
	}
	return exact(*v)
}

// estimateHead and estimateCells are the columns of an estimate.
func estimateHead(name string) []string {
	return cells(name, name+"_low", name+"_high", name+"_t_low", name+"_t_high")
}

func estimateCells(e *Estimate) []string {
	out := make([]string, 5)
	if e == nil {
		return out
	}
	out[0], out[1], out[2] = exact(e.Value), exact(e.Bootstrap.Low), exact(e.Bootstrap.High)
	if e.T != nil {
		out[3], out[4] = exact(e.T.Low), exact(e.T.High)
	}
	return out
}

func armSheet(s Study, r Result) sheet {
	t := sheet{name: "arms.csv"}
	t.add(cells("arm", "about", "settings", "learning_rate", "runs", "finished"), estimateHead("final"), estimateHead("gain"), estimateHead("at_episodes"), estimateHead("at_tokens"),
		estimateHead("area_episodes"), estimateHead("area_tokens"), cells("episodes_mean", "tokens_mean", "probes_mean", "active_s_mean", "search_trials", "search_updates"))
	for i, a := range s.Arms {
		x := r.Arms[i]
		cost := make([]string, 4)
		if x.Finished > 0 {
			cost = cells(exact(x.Cost.Episodes), exact(x.Cost.Tokens), exact(x.Cost.Probes), exact(x.Cost.Active))
		}
		t.add(cells(a.Name, a.About, strings.Join(a.Settings, " "), exact(a.Rate), strconv.Itoa(x.Runs), strconv.Itoa(x.Finished)), estimateCells(x.Final), estimateCells(x.Gain),
			estimateCells(x.AtEpisodes), estimateCells(x.AtTokens), estimateCells(x.AreaEpisodes), estimateCells(x.AreaTokens), cost,
			cells(strconv.Itoa(x.Cost.Trials), strconv.Itoa(x.Cost.TrialUpdates)))
	}
	return t
}

func runSheet(s Study) sheet {
	t := sheet{name: "runs.csv"}
	t.add(cells("arm", "seed", "dir", "finished", "stop", "updates", "final_update", "final", "episodes", "tokens", "probes", "active_s"))
	for _, a := range s.Arms {
		for _, r := range a.Runs {
			final := ""
			if r.Final != nil {
				final = exact(meanOf(taskRates(*r.Final)))
			}
			t.add(cells(a.Name, strconv.FormatInt(r.Seed, 10), r.Dir, strconv.FormatBool(r.Finished), r.Stop, strconv.Itoa(r.updates()), strconv.Itoa(r.FinalUpdate), final,
				strconv.Itoa(r.Cost.Episodes), strconv.FormatInt(r.Cost.Tokens, 10), strconv.Itoa(r.Cost.Probes), exact(r.Cost.Active)))
		}
	}
	return t
}

func curveSheet(s Study) sheet {
	t := sheet{name: "curves.csv"}
	t.add(cells("arm", "seed", "update", "episodes", "tokens", "active_s", "train", "reward", "heldout", "turns_mean", "submitted_rate", "edited_rate", "entropy", "groups_without_signal"))
	for _, a := range s.Arms {
		for _, r := range a.Runs {
			for _, p := range r.Points {
				t.add(cells(a.Name, strconv.FormatInt(r.Seed, 10), strconv.Itoa(p.Update), strconv.Itoa(p.Episodes), strconv.FormatInt(p.Tokens, 10), exact(p.Active), exact(p.Train),
					exact(p.Reward), optional(p.Heldout), exact(p.Turns), exact(p.SubmittedRate), optional(p.EditedRate), exact(p.Entropy), exact(p.GroupsWithoutSignal)))
			}
		}
	}
	return t
}

func comparisonSheet(s Study, r Result) sheet {
	t := sheet{name: "comparisons.csv"}
	t.add(cells("arm", "reference", "basis", "count", "seeds", "tasks"), estimateHead("difference"), cells("p", "p_corrected", "correction", "p_t", "p_t_corrected", "verdict"))
	for _, c := range r.Comparisons {
		count := int64(r.Episodes)
		if c.Basis == AtTokens {
			count = r.Tokens
		}
		t.add(cells(c.Arm, r.Reference, string(c.Basis), strconv.FormatInt(count, 10), strconv.Itoa(len(c.Difference.Seeds)), strconv.Itoa(c.Difference.Tasks)),
			estimateCells(&c.Difference), cells(exact(c.P), exact(c.Corrected), string(s.Options.Correction), optional(c.PT), optional(c.CorrectedT), string(c.Verdict)))
	}
	return t
}

func searchSheet(s Study) sheet {
	t := sheet{name: "search.csv"}
	t.add(cells("arm", "learning_rate", "seed", "score", "updates", "dir", "finished", "chosen"))
	for _, a := range s.Arms {
		for _, x := range a.Search {
			t.add(cells(a.Name, exact(x.Rate), strconv.FormatInt(x.Seed, 10), exact(x.Score), strconv.Itoa(x.Updates), x.Dir, strconv.FormatBool(x.Finished), strconv.FormatBool(x.state(a) == "chosen")))
		}
	}
	return t
}
