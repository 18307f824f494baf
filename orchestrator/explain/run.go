package explain

import (
	"fmt"
	"math"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
)

// Load explains the episode of a run folder that id names (an id or a unique begin or end of one). It reads only. The
// credit is the recorded one, what was trained on; a remark says so where the saved configuration gives another.
// Errors beside those of reading: not_found for an episode whose batch is not finalised yet, invalid for one of an
// evaluation, which earns no credit.
func Load(f *orchestrator.Folder, id string) (Episode, error) {
	const op = "explain: load"
	at, err := f.Find(id)
	if err != nil {
		return Episode{}, err
	}
	if !at.Finished {
		return Episode{}, milepost.E(op, milepost.KindNotFound, "the batch of episode %s (%s) is not finalised yet; its probes and credit are known when it is", at.ID, at.Batch)
	}
	records, err := f.ReadEpisodes(at.Batch)
	if err != nil {
		return Episode{}, err
	}
	i := 0
	for records[i].Episode.ID != at.ID { // Find saw it in this file, which is never changed
		i++
	}
	if records[i].Credit == nil {
		return Episode{}, milepost.E(op, milepost.KindInvalid, "episode %s is of %s, and an evaluation earns no credit; allowed: a training episode", at.ID, at.Batch)
	}
	rules, keep, err := f.Rules()
	if err != nil {
		return Episode{}, err
	}
	tasks, err := f.Tasks()
	if err != nil {
		return Episode{}, err
	}
	s, err := NewSource(at.Batch, records, tasks, rules, keep)
	if err != nil {
		return Episode{}, err
	}
	return FromRecord(s, records, i)
}

// NewSource makes a source of the records of a training batch.
func NewSource(batch string, records []orchestrator.EpisodeRecord, tasks map[string]*milepost.Task, rules credit.Config, keepGroup string) (Source, error) {
	s := Source{Rules: rules, KeepGroup: keepGroup, Batch: batch}
	for _, rec := range records {
		task := tasks[rec.Episode.Task]
		if task == nil || rec.Credit == nil {
			return Source{}, milepost.E("explain: source", milepost.KindCorrupt,
				"%s: episode %s has no task %q among the run's tasks, or no credit", batch, rec.Episode.ID, rec.Episode.Task)
		}
		s.Inputs = append(s.Inputs, rec.Input(task))
		s.Credits = append(s.Credits, *rec.Credit)
	}
	return s, nil
}

// FromRecord explains record i of a source made of records.
func FromRecord(s Source, records []orchestrator.EpisodeRecord, i int) (Episode, error) {
	e, err := New(s, i)
	if err != nil {
		return Episode{}, err
	}
	e.Dropped = records[i].Dropped
	remark, err := s.check(i)
	if remark != "" {
		e.Remarks = append(e.Remarks, remark)
	}
	return e, err
}

// check derives the credit of an episode anew and says where the recorded one is another. Where A_out is whitened over
// the whole update, the process terms alone are compared.
func (s *Source) check(i int) (remark string, err error) {
	rules := s.Rules
	whole := !credit.Whitened(rules.Estimator) && !(credit.NeedsValues(rules.Estimator) && rules.GAEWhiten)
	if !whole {
		rules.Estimator = "grpo"
	}
	engine, err := credit.New(rules)
	if err != nil {
		return "", err
	}
	var inputs []credit.Input
	own := 0
	for k, in := range s.Inputs {
		if k == i {
			own = len(inputs)
		}
		if in.Episode.Group == s.Inputs[i].Episode.Group {
			inputs = append(inputs, in)
		}
	}
	r, err := engine.Assign(inputs)
	if err != nil {
		return "", err
	}
	for t, want := range r.Episodes[own].Steps {
		got := s.Credits[i].Steps[t]
		if !whole {
			got.AOut, got.Advantage = want.AOut, want.Advantage
		}
		if !same(got, want) {
			return fmt.Sprintf("the recorded credit is not what the saved configuration gives: at step %d A is recorded as %s and comes out as %s",
				t, number(got.Advantage), number(want.Advantage)), nil
		}
	}
	return "", nil
}

func same(a, b milepost.StepCredit) bool {
	for _, d := range []float64{a.PhiVer - b.PhiVer, a.PhiNav - b.PhiNav, a.R - b.R, a.B - b.B, a.F - b.F, a.P - b.P, a.AOut - b.AOut, a.Advantage - b.Advantage} {
		if math.Abs(d) > tolerance {
			return false
		}
	}
	return true
}
