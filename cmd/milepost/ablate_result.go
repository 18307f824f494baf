package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/ablation"
)

// choose is the learning rate of an arm and the trials that chose it: the rate with the highest mean score over the
// trial seeds; of equals the smaller. Without a search it is the configured rate. Where trials are missing, rate is 0.
func (s *study) choose(arm *studyArm) (rate float64, trials []ablation.Trial, err error) {
	planned, err := s.trials(arm)
	if err != nil {
		return 0, nil, err
	}
	switch {
	case len(planned) == 0 && len(s.spec.Search.Rates) == 1:
		return s.spec.Search.Rates[0], nil, nil
	case len(planned) == 0:
		return arm.pipeline.run.Update.Optimizer.LR, nil, nil
	}
	sum, whole := map[float64]float64{}, true
	for _, p := range planned {
		t := ablation.Trial{Rate: p.cfg.Update.Optimizer.LR, Seed: p.cfg.Run.Seed, Dir: s.relative(p.cfg.Run.Dir)}
		folder := &orchestrator.Folder{Dir: p.cfg.Run.Dir}
		if t.Finished, err = folder.Finished(); err != nil {
			return 0, nil, err
		}
		if t.Finished {
			if t.Score, t.Updates, err = score(folder); err != nil {
				return 0, nil, err
			}
		}
		whole = whole && t.Finished
		sum[t.Rate] += t.Score
		trials = append(trials, t)
	}
	if !whole {
		return 0, trials, nil
	}
	for r, v := range sum {
		if rate == 0 || v > sum[rate] || v == sum[rate] && r < rate {
			rate = r
		}
	}
	return rate, trials, nil
}

// score is the mean resolved share of the training batches over the last half of a run's updates.
func score(f *orchestrator.Folder) (mean float64, updates int, err error) {
	metrics, err := f.Metrics()
	if err != nil {
		return 0, 0, err
	}
	updates = len(metrics) - 1 // element 0 is before the first
	n := 0
	for u := updates/2 + 1; u <= updates; u++ {
		v, ok := metrics[u]["resolved_rate"]
		if !ok {
			return 0, 0, milepost.E("ablate", milepost.KindCorrupt, "%s: update %d has no resolved_rate", f.Path("metrics.jsonl"), u)
		}
		mean += v
		n++
	}
	if n == 0 {
		return 0, 0, milepost.E("ablate", milepost.KindCorrupt, "%s holds no update", f.Path("metrics.jsonl"))
	}
	return mean / float64(n), updates, nil
}

// load reads everything that was run so far.
func (s *study) load() (ablation.Study, error) {
	c := s.spec.Compare
	out := ablation.Study{Name: s.spec.Name, Command: s.command, Reference: s.spec.Reference, Options: ablation.DefaultOptions()}
	out.Options.Resamples, out.Options.Confidence = c.Resamples, c.Confidence
	out.Options.Correction, out.Options.Seed = ablation.Correction(c.Correction), uint64(c.Seed)
	var err error
	if out.Start, err = s.loadStart(); err != nil {
		return out, err
	}
	for _, arm := range s.arms {
		a, err := s.loadArm(arm)
		if err != nil {
			return out, err
		}
		out.Arms = append(out.Arms, a)
	}
	return out, nil
}

// loadStart is the measurement of the cold start, nil before it was made.
func (s *study) loadStart() (*orchestrator.Evaluation, error) {
	p, err := s.start()
	if err != nil {
		return nil, err
	}
	e, err := (&orchestrator.Folder{Dir: p.cfg.Run.Dir}).Evaluation(orchestrator.EvalBefore)
	if milepost.KindOf(err) == milepost.KindNotFound {
		return nil, nil
	}
	return &e, err
}

func (s *study) loadArm(arm *studyArm) (a ablation.Arm, err error) {
	a = ablation.Arm{Name: arm.Name, About: arm.About, Settings: arm.Set}
	if a.Rate, a.Search, err = s.choose(arm); err != nil {
		return a, err
	}
	for _, seed := range s.spec.Seeds {
		if a.Rate == 0 { // not chosen yet: nothing has run
			a.Runs = append(a.Runs, ablation.Run{Seed: seed})
			continue
		}
		p, err := s.training(arm, a.Rate, seed)
		if err != nil {
			return a, err
		}
		r, err := loadRunOf(p)
		if err != nil {
			return a, err
		}
		r.Dir = s.relative(p.cfg.Run.Dir)
		a.Runs = append(a.Runs, r)
	}
	return a, nil
}

// loadRunOf reads a run, which may not have begun.
func loadRunOf(p plannedRun) (ablation.Run, error) {
	if _, err := os.Stat(filepath.Join(p.cfg.Run.Dir, "journal.jsonl")); os.IsNotExist(err) {
		return ablation.Run{Seed: p.cfg.Run.Seed}, nil
	}
	return ablation.LoadRun(&orchestrator.Folder{Dir: p.cfg.Run.Dir}, p.cfg.Run.Seed)
}

// relative is a path within the study, as the result names it.
func (s *study) relative(path string) string {
	if rel, err := filepath.Rel(s.dir, path); err == nil {
		return rel
	}
	return path
}

// write makes the result anew.
func (s *study) write() error {
	data, err := s.load()
	if err != nil {
		return err
	}
	result, err := ablation.Analyse(data)
	if err != nil {
		return err
	}
	return ablation.Write(s.dir, data, result)
}

// strangers are the folders of runs below the study that are not of it as it is laid out now: made by another spec, other
// overrides or another version of the program. They are left alone, and what they hold is in no table.
func (s *study) strangers() ([]string, error) {
	planned := map[string]bool{}
	for _, arm := range s.arms {
		runs, err := s.trials(arm)
		if err != nil {
			return nil, err
		}
		rates := s.spec.Search.Rates
		if len(rates) == 0 {
			rates = []float64{arm.pipeline.run.Update.Optimizer.LR}
		}
		for _, rate := range rates {
			for _, seed := range s.spec.Seeds {
				r, err := s.training(arm, rate, seed)
				if err != nil {
					return nil, err
				}
				runs = append(runs, r)
			}
		}
		for _, r := range runs {
			planned[r.cfg.Run.Dir] = true
		}
	}
	var out []string
	for _, kind := range []string{"search", "runs"} {
		found, err := filepath.Glob(filepath.Join(s.dir, kind, "*", "journal.jsonl"))
		if err != nil {
			return nil, milepost.Wrap("ablate", milepost.KindInternal, err)
		}
		for _, f := range found {
			if dir := filepath.Dir(f); !planned[dir] {
				out = append(out, s.relative(dir))
			}
		}
	}
	return out, nil
}

// tellStrangers warns of them, since a study that was changed by mistake begins anew.
func (s *study) tellStrangers() error {
	found, err := s.strangers()
	if err == nil && len(found) > 0 {
		s.p.line("warning: %d runs in %s are not of this study as it is now (another spec, --set, --study or version made them) and are left out: %s",
			len(found), s.dir, strings.Join(found[:min(3, len(found))], ", "))
	}
	return err
}

// finish writes the result and prints its table.
func (s *study) finish(out io.Writer) error {
	if err := s.write(); err != nil {
		return err
	}
	path := filepath.Join(s.dir, "ablation.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return milepost.Wrap("ablate", milepost.KindUnavailable, err)
	}
	_, err = fmt.Fprintf(out, "%s\nfiles: %s, ablation.html and CSV beside it\n", text, path)
	return milepost.Wrap("ablate", milepost.KindUnavailable, err)
}
