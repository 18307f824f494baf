package report

import (
	"fmt"
	"regexp"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// class is how far a sample episode came.
type class string

// The classes, in the order in which the report shows them.
const (
	resolved   class = "resolved"
	partly     class = "partly"     // not resolved, but phi_ver ends above 0
	unresolved class = "unresolved" // phi_ver ends at 0 or below
)

var classes = []class{resolved, partly, unresolved}

// Sample is an episode shown step by step.
type Sample struct {
	Update   int
	Class    class
	Episode  *milepost.Episode
	Task     *milepost.Task // nil where the folder has no tasks
	Dropped  string         // why it did not train, or ""
	Baseline string         // what the untouched tree passes
	Verdict  string         // what the final tree passes
	Steps    []StepRow
}

var trainBatch = regexp.MustCompile(`^u(\d+)$`)

// loadSamples takes one episode of each class from the first and from the last finished training batch.
func (d *Data) loadSamples(f *orchestrator.Folder) error {
	names, err := f.Batches()
	if err != nil {
		return err
	}
	var train []string
	for _, n := range names {
		if trainBatch.MatchString(n) {
			train = append(train, n)
		}
	}
	if len(train) == 0 {
		return nil
	}
	tasks, err := optional(f.Tasks())
	if err != nil {
		return err
	}
	ends := []string{train[0], train[len(train)-1]}
	if ends[0] == ends[1] {
		ends = ends[:1]
	}
	for _, name := range ends {
		if err := d.sampleBatch(f, name, tasks); err != nil {
			return err
		}
	}
	return nil
}

func (d *Data) sampleBatch(f *orchestrator.Folder, name string, tasks map[string]*milepost.Task) error {
	records, err := f.ReadEpisodes(name)
	if err != nil {
		return err
	}
	var update int
	fmt.Sscanf(name, "u%d", &update) // the name matched trainBatch
	chosen := choose(records)
	for _, c := range classes {
		rec := chosen[c]
		if rec == nil {
			d.Missing = append(d.Missing, fmt.Sprintf("Update %d has no %s episode", update, c))
			continue
		}
		d.Samples = append(d.Samples, newSample(update, c, rec, tasks[rec.Episode.Task]))
	}
	return nil
}

// choose returns the first episode of each class that says most: one with an advantage over one without, then the one
// whose probes tell most.
func choose(records []orchestrator.EpisodeRecord) map[class]*orchestrator.EpisodeRecord {
	out, best := map[class]*orchestrator.EpisodeRecord{}, map[class]int{}
	for i := range records {
		rec := &records[i]
		if rec.Credit == nil || rec.Credit.Excluded || len(rec.Credit.Steps) != len(rec.Episode.Steps) || len(rec.Episode.Steps) == 0 {
			continue
		}
		score := 1
		for _, s := range rec.Episode.Steps {
			if s.Probe != nil {
				score++
			}
		}
		score = min(score, 4) // more steps than that make a longer table, not a better one
		if rec.Dropped == "" {
			score += 10
		}
		if c := classOf(rec); score > best[c] {
			out[c], best[c] = rec, score
		}
	}
	return out
}

func classOf(rec *orchestrator.EpisodeRecord) class {
	switch {
	case rec.Episode.Outcome.Resolved:
		return resolved
	case rec.Credit.Steps[len(rec.Credit.Steps)-1].PhiVer > 0:
		return partly
	}
	return unresolved
}

func newSample(update int, c class, rec *orchestrator.EpisodeRecord, task *milepost.Task) Sample {
	return Sample{
		Update: update, Class: c, Episode: rec.Episode, Task: task, Dropped: rec.Dropped,
		Baseline: passes(rec.Baseline), Verdict: passes(rec.Episode.Outcome.Verdict), Steps: stepRows(rec, task),
	}
}

// passes says in words what a probe found.
func passes(p *milepost.Probe) string {
	switch {
	case p == nil:
		return "not recorded"
	case !p.Trusted:
		return "not trusted: " + whyUntrusted(p)
	case p.Report == nil:
		return "counts only"
	}
	return fmt.Sprintf("%d of %d tests pass", p.Report.Count(milepost.Passed), len(p.Report))
}

// whyUntrusted says why a probe moves no potential.
func whyUntrusted(p *milepost.Probe) string {
	out := string(p.Status)
	if out == "" {
		out = "no result"
	}
	if p.Reason != "" {
		out += ": " + p.Reason
	}
	if p.Continuity == milepost.ContinuityLost {
		out += " (continuity lost)"
	}
	return out
}
