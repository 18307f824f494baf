package orchestrator

import (
	"fmt"
	"maps"
	"os"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// batch is what the episodes of one update or evaluation came to so far, on disk and in memory. A synchronous run has one
// at a time. In mode async all that no update has taken is one batch, from which each finalised update takes its own,
// and an evaluation has another beside it.
//
// Invariant: batches and their maps belong to the loop; a command's goroutine works on what it was [given].
type batch struct {
	name       string
	part       *partFile
	ended      map[string]*episodeDone // by id
	before     map[string]float64      // probe totals when it began, or when an update was last taken from it
	since      time.Time               // when that was
	lostInARow int                     // episodes that infrastructure lost for good since the last that it did not
}

// episodeDone is an ended episode. What record points to belongs to the command that was given it; the loop reads lost.
type episodeDone struct {
	record EpisodeRecord
	lost   bool // infrastructure had ended it
}

func doneOf(r EpisodeRecord) *episodeDone {
	return &episodeDone{record: r, lost: lost(r.Episode.Status)}
}

// untakenBatch is the batch of what no update of an asynchronous run has taken: its growing file while the run goes on,
// and what was left over in the end.
const untakenBatch = "untaken"

func updateBatch(u int) string { return fmt.Sprintf("u%04d", u) }

// batchOf names the batch that a command works on, "" for none.
func (r *Runner) batchOf(c Command) string {
	switch c.Type {
	case CommandEpisode:
		if c.Episode.Purpose != PurposeTrain {
			return string(c.Episode.Purpose)
		}
		if r.cfg.Mode != ModeAsync {
			return updateBatch(c.Episode.Update)
		}
		return untakenBatch
	case CommandEvaluate:
		return c.Eval
	case CommandJudge, CommandFinalise, CommandClose:
		if r.cfg.Mode != ModeAsync {
			return updateBatch(c.Update)
		}
		return untakenBatch
	}
	return ""
}

// openBatches opens the batches of the given commands that are not, with what earlier epochs stored of them.
func (r *Runner) openBatches(cs []Command) error {
	for _, c := range cs {
		name := r.batchOf(c)
		if name == "" || r.batches[name] != nil {
			continue
		}
		part, records, err := openPart(r.folder, name)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			// A crash between storing a finished batch and journaling it leaves only the finished file.
			done, err := r.folder.ReadEpisodes(name)
			if err != nil && milepost.KindOf(err) != milepost.KindNotFound {
				return err
			}
			records = done
		}
		b := &batch{name: name, part: part, ended: map[string]*episodeDone{}, before: r.totals(), since: r.deps.Now()}
		for _, rec := range records {
			b.ended[rec.Episode.ID] = doneOf(rec) // a judged episode follows the one that ended
		}
		r.batches[name] = b
	}
	return nil
}

// closeBatch leaves a batch that an event has finished. What an update of an asynchronous run took leaves the growing
// file, which holds the rest.
func (r *Runner) closeBatch(c Command) error {
	switch c.Type {
	case CommandEvaluate, CommandFinalise, CommandClose:
	default:
		return nil
	}
	b := r.batches[r.batchOf(c)]
	if c.Type == CommandFinalise && r.cfg.Mode == ModeAsync {
		untaken := r.machine.Untaken()
		maps.DeleteFunc(b.ended, func(id string, _ *episodeDone) bool { return !untaken[id] })
		b.before, b.since = r.totals(), r.deps.Now()
		part, err := b.part.compact(r.folder, b.name, untaken)
		b.part = part
		return err
	}
	delete(r.batches, b.name)
	return milepost.Wrap("orchestrator: close batch", milepost.KindUnavailable, b.part.close())
}

// given is what a command's goroutine works on.
type given struct {
	records []EpisodeRecord    // of the command's episodes, in their order
	before  map[string]float64 // of the batch
	since   time.Time
}

// episodes are those of the records.
func (g given) episodes() []*milepost.Episode {
	out := make([]*milepost.Episode, len(g.records))
	for i, rec := range g.records {
		out[i] = rec.Episode
	}
	return out
}

// give collects what a command works on. It is called by the loop, which owns the batches.
func (r *Runner) give(c Command) (given, error) {
	if len(c.Episodes) == 0 {
		return given{}, nil
	}
	b := r.batches[r.batchOf(c)]
	out := given{records: make([]EpisodeRecord, len(c.Episodes)), before: b.before, since: b.since}
	for i, s := range c.Episodes {
		d := b.ended[s.ID]
		if d == nil {
			return given{}, milepost.E("orchestrator: collect", milepost.KindCorrupt, "episode %s is journaled but not in %s", s.ID, r.folder.Path("episodes", batchFile(b.name)+".part"))
		}
		out.records[i] = d.record
	}
	return out, nil
}

// compact rewrites the growing file with the last record of each episode that is to stay, and opens it again. What was in
// the file before is read from it, since the episodes in memory belong to commands under way.
func (p *partFile) compact(folder *Folder, name string, stay map[string]bool) (*partFile, error) {
	const op = "orchestrator: compact episodes"
	if err := p.close(); err != nil {
		return p, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	path := folder.Path("episodes", batchFile(name)+".part")
	file, err := os.Open(path)
	if err != nil {
		return p, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	records, err := decodeRecords(file)
	if closed := file.Close(); err != nil || closed != nil {
		return p, milepost.E(op, milepost.KindCorrupt, "%s: record %d: %v", path, len(records)+1, err)
	}
	last := map[string]int{}
	for i, rec := range records {
		last[rec.Episode.ID] = i
	}
	var kept []EpisodeRecord
	for i, rec := range records {
		if stay[rec.Episode.ID] && last[rec.Episode.ID] == i {
			kept = append(kept, rec)
		}
	}
	if err := folder.writePart(name, kept); err != nil {
		return p, err
	}
	next, err := reopenPart(folder, name)
	if err != nil {
		return p, err
	}
	return next, nil
}
