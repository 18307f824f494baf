package ablation

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// LoadRun reads a run folder: the journal for the order of things and the tokens, metrics.jsonl for the batches,
// evals/ for the held-out rates. In the runs of an ablation the validations are made on the held-out tasks, so they are
// the held-out curve; the evaluation after training ends it, unless it measured older weights than the last. Of a run
// that has not ended there is what it has so far; of one that has not begun, nothing. A damaged part is an error of
// kind corrupt; a journal of a program that counted no tokens is one of kind invalid.
func LoadRun(f *orchestrator.Folder, seed int64) (Run, error) {
	const op = "ablation: load run"
	r := Run{Seed: seed, Dir: f.Dir}
	h, err := f.History()
	if missing(err) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if r.Finished, err = f.Finished(); err != nil {
		return r, err
	}
	r.Stop = h.Stop
	metrics, err := f.Metrics()
	if err != nil && !missing(err) {
		return r, err
	}
	records, err := journal.Read(f.Path("journal.jsonl"))
	if err != nil {
		return r, err
	}
	l := loader{folder: f, run: &r, metrics: metrics}
	for _, rec := range records {
		var e orchestrator.Event
		if err := json.Unmarshal(rec.Data, &e); err != nil {
			return r, milepost.E(op, milepost.KindCorrupt, "%s: journal record %d: %v", f.Dir, rec.Seq, err)
		}
		if err := l.take(e); err != nil {
			return r, err
		}
	}
	return r, nil
}

// missing reports whether a file is not there; any other failure of reading is one.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// loader carries what the events before told.
type loader struct {
	folder  *orchestrator.Folder
	run     *Run
	metrics []map[string]float64 // by update
	served  int32                // version pushed last
	newest  int32                // highest version pushed
}

func (l *loader) take(e orchestrator.Event) error {
	r := l.run
	r.Cost.Active = e.Active
	switch e.Type {
	case orchestrator.EventFinalised:
		return l.finalised(e)
	case orchestrator.EventTrained:
		if p := l.last(); p != nil {
			p.Active = e.Active
		}
	case orchestrator.EventPushed:
		l.served, l.newest = e.Version, max(l.newest, e.Version)
		if p := l.last(); p != nil && int(e.Version) == p.Update {
			p.Active = e.Active
		}
	case orchestrator.EventEvaluated:
		return l.evaluated(e)
	}
	return nil
}

// last is the point of the newest update; nil before the first.
func (l *loader) last() *Point {
	if len(l.run.Points) == 0 {
		return nil
	}
	return &l.run.Points[len(l.run.Points)-1]
}

func (l *loader) finalised(e orchestrator.Event) error {
	const op = "ablation: load run"
	if e.Update >= len(l.metrics) || !has(l.metrics[e.Update], "episodes", "resolved_rate") {
		return milepost.E(op, milepost.KindCorrupt, "%s: metrics.jsonl lacks the batch of update %d, which the journal has", l.folder.Dir, e.Update)
	}
	m := l.metrics[e.Update]
	if e.Tokens == 0 && m["episodes"] > 0 {
		return milepost.E(op, milepost.KindInvalid, "%s: the journal does not say how many tokens update %d sampled; the run was made by an older program", l.folder.Dir, e.Update)
	}
	c := &l.run.Cost
	c.Episodes += int(math.Round(m["episodes"]))
	c.Probes += int(math.Round(m["probes"]))
	c.Tokens += e.Tokens
	l.run.Points = append(l.run.Points, Point{
		Update: e.Update, Episodes: c.Episodes, Tokens: c.Tokens, Active: e.Active,
		Train: m["resolved_rate"], Reward: m["reward_mean"],
		Turns: m["turns_mean"], SubmittedRate: m["submitted_rate"], EditedRate: recorded(m, "edited_rate"), Entropy: m["entropy"], GroupsWithoutSignal: m["groups_without_signal"],
	})
	return nil
}

// recorded is a metric that not every run has.
func recorded(m map[string]float64, name string) *float64 {
	if v, ok := m[name]; ok {
		return &v
	}
	return nil
}

func has(m map[string]float64, names ...string) bool {
	for _, n := range names {
		if _, ok := m[n]; !ok {
			return false
		}
	}
	return true
}

// evaluated puts an evaluation on the curve, at the update before which it was made.
func (l *loader) evaluated(e orchestrator.Event) error {
	v, err := l.folder.Evaluation(e.Eval)
	if err != nil {
		return err
	}
	if e.Eval == orchestrator.EvalAfter {
		l.run.Final = &v
		if p := l.last(); p != nil {
			l.run.FinalUpdate = p.Update
		}
		if l.served < l.newest {
			l.run.FinalUpdate = int(l.served)
			return nil // older weights: no point of the curve's end
		}
	}
	if len(v.Tasks) == 0 {
		return nil // infrastructure lost all of it
	}
	p := l.last()
	if p == nil {
		l.run.Points = append(l.run.Points, Point{Active: e.Active})
		p = l.last()
	}
	p.Tasks = taskRates(v)
	rate := meanOf(p.Tasks)
	p.Heldout = &rate
	return nil
}
