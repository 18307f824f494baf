package rollout

import (
	"context"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// finishTime bounds what is done after the loop; it only guards against a git that hangs.
const finishTime = 2 * time.Minute

// finish gives the episode its status and, where it is to be graded, patch and verdict request.
func (l *loop) finish(ctx context.Context, stop milepost.StopReason, cause error) error {
	l.out.Stop = stop
	l.out.FinalState, l.out.FinalTree = l.state(), l.tree()
	if l.repo != nil {
		l.out.FinalDelta = l.repo.now.delta
	}
	defer func() { l.out.Duration = l.deps.Clock.Now().Sub(l.started) }()
	switch {
	case cause != nil:
		return cause
	case stop == milepost.StopCanceled:
		l.out.Status = milepost.EpisodeCancelled
		return nil
	case stop == milepost.StopSubmit:
		l.out.Status = milepost.EpisodeCompleted
	default:
		l.out.Status = milepost.EpisodeLimit
	}
	if err := checkSamples(l.out); err != nil {
		return err
	}
	_, err := l.guarded(ctx, l.handIn)
	return err
}

// handIn writes the patch and asks for the verdict. An episode that has come this far is worth its grade even if the
// caller gives up now.
func (l *loop) handIn(ctx context.Context) (milepost.StopReason, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	var err error
	if l.out.Patch, err = repo.Patch(ctx, l.repo.base, l.repo.now.delta, l.deps.Blobs); err != nil {
		return l.out.Stop, err
	}
	l.out.Outcome.Verdict = l.publish(ctx, milepost.ProbeVerdict, "verdict", len(l.out.Steps))
	return l.out.Stop, nil
}

// fail makes the episode an infrastructure failure: it is in no statistic, trains nothing and is tried again.
func (l *loop) fail(err error) {
	l.out.Status, l.out.Stop, l.out.Error = milepost.EpisodeInfra, milepost.StopError, err.Error()
}

// checkSamples proves that the token ranges of the steps lie within the samples: training on a range that is off by one
// is worse than losing the episode.
func checkSamples(e *milepost.Episode) error {
	const op = "rollout: check samples"
	for i, s := range e.Samples {
		n := len(s.Tokens)
		if len(s.Logprobs) != n || len(s.Versions) != n || len(s.Steps) != n {
			return milepost.E(op, milepost.KindInternal, "sample %d has %d tokens, %d logprobs, %d versions and %d steps", i, n, len(s.Logprobs), len(s.Versions), len(s.Steps))
		}
	}
	if e.Samples == nil {
		return nil
	}
	for _, st := range e.Steps {
		if st.Sample < 0 || st.Sample >= len(e.Samples) {
			return milepost.E(op, milepost.KindInternal, "step %d is in sample %d of %d", st.Index, st.Sample, len(e.Samples))
		}
		s := e.Samples[st.Sample]
		if st.TokenStart < 0 || st.TokenStart > st.TokenEnd || st.TokenEnd > len(s.Tokens) {
			return milepost.E(op, milepost.KindInternal, "step %d has tokens [%d, %d) of a sample of %d", st.Index, st.TokenStart, st.TokenEnd, len(s.Tokens))
		}
		for t := st.TokenStart; t < st.TokenEnd; t++ {
			if int(s.Steps[t]) != st.Index {
				return milepost.E(op, milepost.KindInternal, "token %d lies in the range of step %d but was sampled by step %d", t, st.Index, s.Steps[t])
			}
		}
	}
	return nil
}
