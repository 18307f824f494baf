package orchestrator

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/tfevents"
)

// Part says what a line of metrics tells of; it is the first half of a scalar's name in trackers.
type Part string

// The parts of metrics.jsonl. The last two are evaluations: their lines are not figures of an update.
const (
	PartBatch      Part = "batch"
	PartUpdate     Part = "update"
	PartPush       Part = "push"
	PartValidation Part = "validation"
	PartHeldout    Part = "heldout"
)

// MetricsLine is one line of metrics.jsonl. Several lines of one update add up; a later value of a name wins.
type MetricsLine struct {
	Update int                `json:"update"`
	Part   Part               `json:"part,omitempty"` // "" in folders of earlier versions
	Time   time.Time          `json:"time,omitzero"`
	Active float64            `json:"active"` // seconds
	Values map[string]float64 `json:"values"`
}

// Scalars are the line's values by the names that trackers show: PART/NAME, where probes, push and time go together
// wherever they were measured.
func (l MetricsLine) Scalars() map[string]float64 {
	out := make(map[string]float64, len(l.Values))
	for name, v := range l.Values {
		group := string(l.Part)
		switch {
		case l.evaluation():
		case strings.HasPrefix(name, "probe"):
			group = "probes"
		case strings.HasPrefix(name, "worker_"):
			group = "workers"
		case strings.HasPrefix(name, "time_"):
			group = "time"
		case group == "":
			group = "run"
		}
		out[group+"/"+name] = v
	}
	return out
}

func (l MetricsLine) evaluation() bool { return l.Part == PartValidation || l.Part == PartHeldout }

// metricsLog is metrics.jsonl with what is made of it at once: the event files of TensorBoard, and who else is told.
//
// Invariants: mu is held while a line is written, so lines have one order for everyone. Event files are a view of
// metrics.jsonl: the first line of a start, and every line that would put a step twice, makes them anew from it, so that
// neither a resumed run nor a torn end shows in them.
type metricsLog struct {
	folder *Folder
	now    func() time.Time
	told   func(MetricsLine) // may be nil

	mu    sync.Mutex
	board *tfevents.Writer // nil before the first line of this start, and after an error
}

// append writes a line; values that JSON cannot hold are left out.
func (l *metricsLog) append(line MetricsLine) error {
	const op = "orchestrator: record metrics"
	clean := map[string]float64{}
	for k, v := range line.Values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			clean[k] = v
		}
	}
	line.Values, line.Time = clean, l.now()
	b, err := json.Marshal(line)
	if err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := AppendLine(l.folder.Path("metrics.jsonl"), b); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if l.told != nil {
		l.told(line)
	}
	return l.show(line)
}

// show brings the event files up to the line, which is in metrics.jsonl already.
func (l *metricsLog) show(line MetricsLine) (err error) {
	p := pointOf(line)
	if l.board != nil && l.board.Follows(p) {
		if err = l.board.Add(p); err != nil {
			err = errors.Join(err, l.close())
		}
		return err
	}
	lines, err := l.folder.MetricsLines()
	if err != nil {
		return err
	}
	points := make([]tfevents.Point, len(lines))
	for i, old := range lines {
		points[i] = pointOf(old)
	}
	if err := l.close(); err != nil {
		return err
	}
	l.board, err = tfevents.Rewrite(l.folder.Path("tensorboard"), l.now(), points)
	return err
}

// pointOf is a line as TensorBoard shows it.
func pointOf(l MetricsLine) tfevents.Point {
	return tfevents.Point{Time: l.Time, Step: int64(l.Update), Values: l.Scalars()}
}

// close closes the event file; the next line makes it anew.
func (l *metricsLog) close() error {
	if l.board == nil {
		return nil
	}
	board := l.board
	l.board = nil
	return board.Close()
}

// recordMetrics appends what was measured for an update.
func (r *Runner) recordMetrics(update int, part Part, values map[string]float64) error {
	return r.metrics.append(MetricsLine{Update: update, Part: part, Active: r.active0 + r.deps.Now().Sub(r.started).Seconds(), Values: values})
}

// AppendLine appends a line to a file. What a crash or a full disk left of the last one stays a line of its own.
func AppendLine(path string, line []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if end > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, end-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	_, err = f.Write(append(line, '\n'))
	return err
}

// maxUpdate is beyond any run; a line that names a later update is damaged.
const maxUpdate = 1 << 20

// MetricsLines reads metrics.jsonl as it was written. A torn or damaged line is left out.
func (f *Folder) MetricsLines() ([]MetricsLine, error) {
	var out []MetricsLine
	_, err := f.MetricsFrom(0, func(l MetricsLine, _ int64) error {
		out = append(out, l)
		return nil
	})
	return out, err
}

// MetricsFrom visits the lines of metrics.jsonl from an offset on, each with the offset behind it, and returns the last of
// these: what is read from there on was written later. A line that is torn at the end is not passed, a damaged one is.
func (f *Folder) MetricsFrom(offset int64, visit func(l MetricsLine, end int64) error) (int64, error) {
	const op = "orchestrator: read metrics"
	file, err := os.Open(f.Path("metrics.jsonl"))
	if err != nil {
		return offset, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return offset, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	for r := bufio.NewReader(file); ; {
		text, err := r.ReadBytes('\n')
		if err == io.EOF {
			return offset, nil
		}
		if err != nil {
			return offset, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		end := offset + int64(len(text))
		var l MetricsLine
		if json.Unmarshal(text, &l) == nil && l.Update >= 0 && l.Update <= maxUpdate {
			if err := visit(l, end); err != nil {
				return offset, err
			}
		}
		offset = end
	}
}

// Metrics reads metrics.jsonl: element u holds the values of update u. Evaluations, which have files of their own (see
// Evaluation), and torn or damaged lines are left out.
func (f *Folder) Metrics() ([]map[string]float64, error) {
	lines, err := f.MetricsLines()
	var out []map[string]float64
	for _, l := range lines {
		if l.evaluation() {
			continue
		}
		for len(out) <= l.Update {
			out = append(out, map[string]float64{})
		}
		out[l.Update]["active_s"] = l.Active
		maps.Copy(out[l.Update], l.Values)
	}
	return out, err
}
