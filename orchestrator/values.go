package orchestrator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Values of a value head, for estimators that need them (ppo_gae). They are asked for once an update, or once a group
// where groups are judged one by one, of the weights that the update begins with and before advantages are known. What
// comes back is kept twice: in the batch file, so that a replayed update is the same update, and in the episode records,
// so that credit can be derived again.

// checkValuer refuses a learner that cannot give what the estimator needs.
func checkValuer(engine *credit.Engine, learner Learner) error {
	estimator := engine.Config().Estimator
	if _, ok := learner.(Valuer); !ok && credit.NeedsValues(estimator) {
		return milepost.E("orchestrator: new", milepost.KindInvalid, "credit.estimator is %s, which needs a trainer with a value head, and this one has none; allowed: another estimator", estimator)
	}
	return nil
}

// assign computes the credit of an update by group; asking is the time that the trainer took for values.
func (r *Runner) assign(ctx context.Context, update int, inputs []credit.Input) (assigned credit.Result, asking time.Duration, err error) {
	start := r.deps.Now()
	if err := r.fillValues(ctx, updateBatch(update), inputs); err != nil {
		return credit.Result{}, 0, err
	}
	if credit.NeedsValues(r.engine.Config().Estimator) {
		asking = r.deps.Now().Sub(start)
	}
	assigned, err = r.engine.Assign(inputs)
	return assigned, asking, err
}

// fillValues sets Input.Values of the episodes that train, where the estimator needs values. The file that carries their
// tokens to the trainer lies beside the batch, under a name of its own, for as long as the call takes.
func (r *Runner) fillValues(ctx context.Context, name string, inputs []credit.Input) error {
	const op = "orchestrator: values"
	if !credit.NeedsValues(r.engine.Config().Estimator) {
		return nil
	}
	var rows []Row
	var owners []int // input of each row
	for i, in := range inputs {
		if lost(in.Episode.Status) {
			continue
		}
		inputs[i].Values = make([]float64, 0, len(credit.TrainedSteps(in.Episode)))
		for range appendRows(&rows, in.Episode) {
			owners = append(owners, i)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	r.learner.Lock() // groups are judged side by side, in mode async beside an update step
	defer r.learner.Unlock()
	path := r.folder.Path("batches", name+".values")
	sum, err := r.deps.Learner.WriteBatch(path, rows)
	if err != nil {
		return err
	}
	values, err := r.deps.Learner.(Valuer).Values(ctx, path, sum)
	if err = errors.Join(err, milepost.Wrap(op, milepost.KindUnavailable, os.Remove(path))); err != nil {
		return err
	}
	if len(values) != len(rows) {
		return milepost.E(op, milepost.KindInternal, "%d rows of values for %d of %s", len(values), len(rows), filepath.Base(path))
	}
	for k, i := range owners {
		for _, v := range values[k] {
			inputs[i].Values = append(inputs[i].Values, float64(v))
		}
	}
	return nil // that there is one value a trained token is the engine's to check
}

// appendRows appends the rows of an episode's samples, those without a trained token left out, and returns how many.
func appendRows(rows *[]Row, ep *milepost.Episode) int {
	made := episodeRows(ep, milepost.EpisodeCredit{Steps: make([]milepost.StepCredit, len(ep.Steps))}, nil)
	*rows = append(*rows, made...)
	return len(made)
}

// Input is the record as the credit engine takes it, with what Credit was computed from.
func (rec EpisodeRecord) Input(task *milepost.Task) credit.Input {
	return credit.Input{Episode: rec.Episode, Task: task, Baseline: rec.Baseline, Values: widen(rec.Values)}
}

// narrow and widen carry values between the trainer's precision, in which records keep them, and that of credit. Values
// come from the trainer, so nothing is lost.
func narrow(values []float64) []float32 {
	if values == nil {
		return nil
	}
	out := make([]float32, len(values))
	for i, v := range values {
		out[i] = float32(v)
	}
	return out
}

func widen(values []float32) []float64 {
	if values == nil {
		return nil
	}
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
}

// tokenCredit is the credit by token of the i-th episode; nil where the estimator assigns by step.
func tokenCredit(r credit.Result, i int) *credit.TokenCredit {
	if r.Tokens == nil {
		return nil
	}
	return &r.Tokens[i]
}
