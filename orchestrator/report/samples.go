package report

import (
	"fmt"
	"regexp"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/explain"
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
	Update    int
	Class     class
	Explained explain.Episode
	Statement string // what the agent was told
	Patch     string // from the base tree to the final one
}

// fullLimit is the length in runes of a sampled text or an observation that the page shows when it is opened.
const fullLimit = 4000

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
	tasks, err := f.Tasks()
	if milepost.KindOf(err) == milepost.KindNotFound {
		d.Missing = append(d.Missing, "The folder has no tasks, without which no episode can be explained")
		return nil
	}
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
	rules, keep, err := f.Rules()
	remark := ""
	if milepost.KindOf(err) == milepost.KindNotFound {
		rules, keep, err = credit.Default(), orchestrator.DefaultConfig().Sampling.Criterion, nil
		remark = "the folder has no saved configuration: the rules shown are the defaults"
	}
	if err != nil {
		return err
	}
	source, err := explain.NewSource(name, records, tasks, rules, keep)
	if err != nil {
		return err
	}
	var update int
	fmt.Sscanf(name, "u%d", &update) // the name matched trainBatch
	chosen := choose(records)
	for _, c := range classes {
		i, ok := chosen[c]
		if !ok {
			d.Missing = append(d.Missing, fmt.Sprintf("Update %d has no %s episode", update, c))
			continue
		}
		e, err := explain.FromRecord(source, records, i)
		if err != nil {
			return err
		}
		if remark != "" {
			e.Remarks = append(e.Remarks, remark)
		}
		d.Samples = append(d.Samples, Sample{Update: update, Class: c, Explained: e,
			Statement: source.Inputs[i].Task.Statement, Patch: records[i].Episode.Patch})
	}
	return nil
}

// choose returns the index of the first episode of each class that says most: one with an advantage over one without, then the one
// whose probes tell most.
func choose(records []orchestrator.EpisodeRecord) map[class]int {
	out, best := map[class]int{}, map[class]int{}
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
			out[c], best[c] = i, score
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
