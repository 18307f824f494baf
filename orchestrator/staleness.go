package orchestrator

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Staleness in the runner: the versions that sampled an episode's trained tokens, and what of a batch is too old. The
// machine decides by groups (async.go); here it is by token.

// versionsOf returns the least and the greatest version that sampled a trained token, noVersion where there is none.
func versionsOf(ep *milepost.Episode) (oldest, newest int32) {
	oldest, newest = noVersion, noVersion
	for _, s := range ep.Samples {
		for t, step := range s.Steps {
			if !credit.Trained(ep, step) {
				continue
			}
			if v := s.Versions[t]; oldest == noVersion {
				oldest, newest = v, v
			} else {
				oldest, newest = min(oldest, v), max(newest, v)
			}
		}
	}
	return oldest, newest
}

// aged is the staleness of a batch's tokens.
type aged struct {
	rows   []Row // without what is too old
	tokens int   // trained
	masked int   // trained but for their age
	sum    float64
	most   int32
}

// age applies the bound of staleness to the rows of an update that starts from weights of version base. Under cut a token
// beyond it cannot be there, since the machine gives up its group: one is an error of kind internal. Under mask the row
// keeps it as context; a row of which nothing is left to train is left out.
func (a Async) age(rows []Row, base int32) (aged, error) {
	var out aged
	for _, row := range rows {
		left := false
		for t := range row.Mask {
			if !row.Mask[t] {
				continue
			}
			age := base - row.Versions[t]
			if age > int32(a.MaxStaleness) {
				if a.OnStale != StaleMask {
					return aged{}, milepost.E("orchestrator: staleness", milepost.KindInternal, "episode %s has a trained token of version %d in an update from version %d, though schedule.async.max_staleness is %d",
						row.Episode, row.Versions[t], base, a.MaxStaleness)
				}
				row.leaveOut(t)
				out.masked++
				continue
			}
			left = true
			out.tokens, out.sum, out.most = out.tokens+1, out.sum+float64(age), max(out.most, age)
		}
		if left {
			out.rows = append(out.rows, row)
		}
	}
	return out, nil
}

// leaveOut makes a trained token one of context.
func (r *Row) leaveOut(t int) {
	r.Mask[t], r.Advantages[t] = false, 0
	if r.Values != nil {
		r.Values[t], r.Returns[t] = 0, 0
	}
}

// metrics adds the figures of staleness.
func (a aged) metrics(into map[string]float64, s *Sampled) {
	into["staleness_mean"] = ratio(a.sum, float64(a.tokens))
	into["staleness_max"] = float64(a.most)
	into["tokens_stale"] = ratio(float64(a.masked), float64(a.tokens+a.masked))
	into["groups_stale"] = float64(s.count(FateStale))
}

// runClose stores what no update of an asynchronous run took.
func (r *Runner) runClose(c Command, g given) completion {
	for i := range g.records {
		rec := &g.records[i]
		if rec.Dropped = "no update took its group"; rec.Credit == nil && rec.Episode.Status != milepost.EpisodeInfra {
			rec.Episode.Status = milepost.EpisodeCancelled // not judged: it is in no statistic
		}
	}
	store := func() error { return r.folder.WriteEpisodes(untakenBatch, g.records) }
	if len(g.records) == 0 {
		store = func() error { return r.folder.removePart(untakenBatch) }
	}
	if err := store(); err != nil {
		return completion{err: err}
	}
	return completion{event: Event{Type: EventClosed, Tokens: sampledTokens(g.episodes())}}
}
