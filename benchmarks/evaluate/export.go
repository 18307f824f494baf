package evaluate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// proDataset is the importer of the data set whose predictions have a form of their own.
const proDataset = "swe-bench-pro"

// Exported names the files of one set of predictions.
type Exported struct{ Predictions, Report string }

// Export writes, for every attempt index and for the selected attempts, the predictions in SWE-bench's form (Pro's where
// every task is Pro's) and SWE-bench's report of the run into dir. Attempts that infrastructure lost have no prediction,
// so a harness calls them incomplete. patch reads the patch of an attempt.
func Export(dir string, tasks []*milepost.Task, h History, r *Result, model string, patch func(Record) (string, error)) ([]Exported, error) {
	pro := !slices.ContainsFunc(tasks, func(t *milepost.Task) bool { return t.Origin == nil || t.Origin.Dataset != proDataset })
	byTask := map[string]map[int]Record{}
	for _, rec := range h.Records {
		if byTask[rec.Task] == nil {
			byTask[rec.Task] = map[int]Record{}
		}
		byTask[rec.Task][rec.Attempt] = rec
	}
	var out []Exported
	one := func(name string, pick func(task string) (int, bool)) error {
		e := Exported{filepath.Join(dir, "predictions-"+name+".jsonl"), filepath.Join(dir, "report-"+name+".json")}
		if pro {
			e.Predictions = filepath.Join(dir, "predictions-"+name+".json")
		}
		set := exportSet{pro: pro, model: model, patch: patch, graded: map[string]predictions.Instance{}}
		for _, t := range tasks {
			set.ids = append(set.ids, grade.InstanceID(t))
			index, ok := pick(t.ID)
			if rec, made := byTask[t.ID][index]; ok && made {
				if err := set.add(t, rec); err != nil {
					return err
				}
			}
		}
		out = append(out, e)
		return set.write(e)
	}
	for a := range h.Start.Attempts {
		if err := one(fmt.Sprintf("attempt-%d", a), func(string) (int, bool) { return a, true }); err != nil {
			return nil, err
		}
	}
	if r.Selected == nil {
		return out, nil
	}
	chosen := map[string]int{}
	for _, t := range r.Rows {
		if t.Selected != nil {
			chosen[t.ID] = *t.Selected
		}
	}
	return out, one("selected", func(task string) (int, bool) { a, ok := chosen[task]; return a, ok })
}

// exportSet is one set of predictions under way.
type exportSet struct {
	pro    bool
	model  string
	patch  func(Record) (string, error)
	ids    []string
	list   []predictions.Prediction
	graded map[string]predictions.Instance
	ends   []*grade.Verdict // of each prediction: outcome and hint
}

func (s *exportSet) add(t *milepost.Task, rec Record) error {
	text, err := s.patch(rec)
	if err != nil {
		return err
	}
	id := grade.InstanceID(t)
	s.list = append(s.list, predictions.Prediction{InstanceID: id, Model: s.model, Patch: &text})
	s.ends = append(s.ends, &grade.Verdict{InstanceID: id, Outcome: grade.Outcome(rec.Outcome), Hint: rec.Hint, HintTier: rec.HintTier})
	if rec.Report != nil {
		s.graded[id] = *rec.Report
	}
	return nil
}

func (s *exportSet) write(e Exported) error {
	var buf bytes.Buffer
	write := predictions.Write
	if s.pro {
		write = predictions.WritePro
	}
	if err := write(&buf, s.list); err != nil {
		return err
	}
	if err := benchmarks.WriteWhole(e.Predictions, buf.Bytes()); err != nil {
		return milepost.Wrap("evaluate: export", milepost.KindUnavailable, err)
	}
	buf.Reset()
	run := predictions.Summarise(s.ids, s.list, s.graded)
	grade.Hints(&run, s.ends)
	if err := predictions.WriteRun(&buf, run); err != nil {
		return err
	}
	return milepost.Wrap("evaluate: export", milepost.KindUnavailable, benchmarks.WriteWhole(e.Report, buf.Bytes()))
}

// PatchFile is where the patch of an attempt lies, below the evaluation's folder.
func PatchFile(dir, task string, attempt int) string {
	return filepath.Join(dir, "attempts", task, fmt.Sprint(attempt), "patch.diff")
}

// ReadPatch reads it. The patch of an attempt that changed nothing is empty.
func ReadPatch(dir string, rec Record) (string, error) {
	b, err := os.ReadFile(PatchFile(dir, rec.Task, rec.Attempt))
	if err != nil {
		return "", milepost.E("evaluate: read patch", milepost.KindCorrupt, "attempt %s is in the journal, its patch is not there: %w", rec.ID, err)
	}
	if len(b) != rec.PatchBytes {
		return "", milepost.E("evaluate: read patch", milepost.KindCorrupt, "the patch of attempt %s has %d bytes, the journal says %d", rec.ID, len(b), rec.PatchBytes)
	}
	return string(b), nil
}
