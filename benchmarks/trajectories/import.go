package trajectories

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// The files of an import: demonstrations for the trainer, and where each came from.
const (
	DemosFile = "demos.jsonl"
	IndexFile = "index.jsonl"
)

// Options say what to import and what to keep. The zero value of a filter keeps all but what Unresolved says.
type Options struct {
	From   []string // files, or folders of them
	Out    string   // folder of the import; must not hold one. "" writes nothing
	Format string   // how calls are written: one of toolcall.Names
	Tools  bool     // demonstrations tell the chat template their tools
	Kit    string   // hold calls to this kit's tools and not to those of the record; "" for the record's own
	Mask   string   // one of Masks

	Unresolved  bool              // keep trajectories that did not resolve their task, and those of which it is not known
	Resolved    map[string]bool   // verdicts by instance id, over those of the records; see ReadVerdicts
	Exits       []string          // keep these exit statuses alone
	MaxTokens   int               // leave longer conversations out, at 4 bytes a token; 0 for no bound
	MaxTurns    int               // leave conversations of more turns out; 0 for no bound
	PerTask     int               // keep at most so many of a task; 0 for no bound
	SkipInvalid bool              // leave faulty records out and list them, instead of ending at the first
	Each        func(*Trajectory) // is shown every trajectory that was read, before filters; nil for nobody
}

// bytesPerToken is the estimate behind MaxTokens; the trainer's own max_tokens is exact.
const bytesPerToken = 4

// Summary is what an import came to.
type Summary struct {
	Files    int            `json:"files"`
	Read     int            `json:"read"` // trajectories, faulty ones left aside
	Kept     int            `json:"kept"`
	Formats  map[string]int `json:"formats"`  // read, by format
	Exits    map[string]int `json:"exits"`    // read, by exit status
	Left     map[string]int `json:"left_out"` // by reason
	Turns    int            `json:"turns"`    // trained turns of what was kept
	Masked   map[string]int `json:"masked"`   // turns of what was kept that are not trained, by reason
	Faults   []string       `json:"faults"`   // of faulty records, at most maxFaults
	Faulty   int            `json:"faulty"`
	Unproven int            `json:"unproven"` // read, and not known to have resolved their task or not
}

const maxFaults = 100

// Entry is one line of index.jsonl: where a demonstration came from.
type Entry struct {
	ID       string `json:"id"`
	Task     string `json:"task"`
	File     string `json:"file"`
	Row      int    `json:"row"`
	Format   string `json:"format"`
	Resolved *bool  `json:"resolved,omitempty"`
	Exit     string `json:"exit_status,omitempty"`
	Turns    int    `json:"turns"`
	Masked   int    `json:"masked"`
	Bytes    int    `json:"bytes"`
	Hash     string `json:"sha256"`
}

// Validate reports the first option that is out of range.
func (o Options) Validate() error {
	bad := func(format string, args ...any) error {
		return milepost.E("trajectories: options", milepost.KindInvalid, format, args...)
	}
	switch {
	case len(o.From) == 0:
		return bad("nothing to import; files or folders are wanted")
	case !slices.Contains(toolcall.Names(), o.Format):
		return bad("tool format %q is not one of %s", o.Format, strings.Join(toolcall.Names(), ", "))
	case !slices.Contains(Masks(), o.Mask):
		return bad("mask %q is not one of %s", o.Mask, strings.Join(Masks(), ", "))
	case o.Kit != "" && !slices.Contains(tools.Kits(), o.Kit):
		return bad("scaffold %q is not one of %s", o.Kit, strings.Join(tools.Kits(), ", "))
	case o.MaxTokens < 0 || o.MaxTurns < 0 || o.PerTask < 0:
		return bad("bounds of tokens, turns and attempts a task must be at least 0; they are %d, %d and %d", o.MaxTokens, o.MaxTurns, o.PerTask)
	}
	return nil
}

// importer is one import under way.
type importer struct {
	o      Options
	kit    []toolcall.Spec
	sum    Summary
	seen   map[string]bool // hashes
	ids    map[string]bool
	byTask map[string]int
	demos  *json.Encoder
	index  *json.Encoder
}

// Import reads trajectories and writes demonstrations of those that are kept; the folder's files appear whole, or not at
// all. Errors: KindInvalid for a faulty record (file, row and field named), KindConflict where Out holds an import already,
// KindLimit where nothing is kept.
func Import(ctx context.Context, o Options) (_ Summary, err error) {
	if err := o.Validate(); err != nil {
		return Summary{}, err
	}
	im := &importer{o: o, seen: map[string]bool{}, ids: map[string]bool{}, byTask: map[string]int{},
		sum: Summary{Formats: map[string]int{}, Exits: map[string]int{}, Left: map[string]int{}, Masked: map[string]int{}}}
	if o.Kit != "" {
		im.kit = kitSpecs(o.Kit)
	}
	if o.Out == "" {
		return im.sum, im.files(ctx)
	}
	commit, discard, err := im.open()
	if err != nil {
		return im.sum, err
	}
	defer discard()
	if err := im.files(ctx); err != nil {
		return im.sum, err
	}
	if im.sum.Kept == 0 {
		return im.sum, milepost.E("trajectories: import", milepost.KindLimit, "of %d trajectories none is kept: %s", im.sum.Read, counts(im.sum.Left))
	}
	return im.sum, commit()
}

// open makes the files of the import under other names. commit gives them theirs; discard removes what was not committed.
func (im *importer) open() (commit func() error, discard func(), err error) {
	const op = "trajectories: write"
	if _, err := os.Lstat(filepath.Join(im.o.Out, DemosFile)); err == nil {
		return nil, nil, milepost.E(op, milepost.KindConflict, "%s holds an import already", im.o.Out)
	}
	if err := os.MkdirAll(im.o.Out, 0o755); err != nil {
		return nil, nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	var files []*os.File
	var buffers []*bufio.Writer
	discard = func() {
		for _, f := range files {
			f.Close()
			os.Remove(f.Name())
		}
	}
	names := []string{IndexFile, DemosFile} // demonstrations last: where they are the import is whole
	encoders := []**json.Encoder{&im.index, &im.demos}
	for i, name := range names {
		f, err := os.Create(filepath.Join(im.o.Out, name+".tmp"))
		if err != nil {
			discard()
			return nil, nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		b := bufio.NewWriterSize(f, 1<<20)
		files, buffers = append(files, f), append(buffers, b)
		*encoders[i] = json.NewEncoder(b)
		(*encoders[i]).SetEscapeHTML(false)
	}
	commit = func() error {
		for i, f := range files {
			if err := errors.Join(buffers[i].Flush(), f.Sync(), f.Close(), os.Rename(f.Name(), filepath.Join(im.o.Out, names[i]))); err != nil {
				return milepost.Wrap(op, milepost.KindUnavailable, err)
			}
		}
		return nil
	}
	return commit, discard, nil
}

func (im *importer) files(ctx context.Context) error {
	for _, from := range im.o.From {
		files, err := find(from)
		if err != nil {
			return err
		}
		for _, file := range files {
			im.sum.Files++
			if err := im.file(ctx, file); err != nil {
				return err
			}
		}
	}
	return nil
}

func (im *importer) file(ctx context.Context, file string) error {
	for r, err := range records(ctx, file) {
		if ctx.Err() != nil {
			return milepost.Wrap("trajectories: import", milepost.KindCanceled, ctx.Err())
		}
		var t *Trajectory
		if err == nil {
			t, err = read(r)
		}
		if err == nil {
			err = im.one(t)
			var f *fieldError
			if errors.As(err, &f) {
				err = faultIn(r, t.ID, err)
			}
		}
		if err == nil {
			continue
		}
		if !im.o.SkipInvalid || milepost.KindOf(err) != milepost.KindInvalid {
			return err
		}
		if im.sum.Faulty++; len(im.sum.Faults) < maxFaults {
			im.sum.Faults = append(im.sum.Faults, err.Error())
		}
	}
	return nil
}

// one takes a trajectory through masks and filters and writes what is kept.
func (im *importer) one(t *Trajectory) error {
	if v, ok := im.o.Resolved[t.Task]; ok {
		t.Resolved = &v
	}
	if err := t.findCalls(); err != nil {
		return err
	}
	held := t.Tools
	if im.kit != nil {
		held, t.Tools = im.kit, im.kit
	}
	if err := t.judge(im.o.Mask, held); err != nil {
		return err
	}
	d, err := t.demo(im.o.Format, im.o.Tools)
	if err != nil {
		return err
	}
	im.sum.Read++
	im.sum.Formats[t.Format]++
	im.sum.Exits[t.Exit]++
	if t.Resolved == nil {
		im.sum.Unproven++
	}
	if im.o.Each != nil {
		im.o.Each(t)
	}
	hash := d.hash()
	if why := im.leftOut(t, d, hash); why != "" {
		im.sum.Left[why]++
		return nil
	}
	im.seen[hash] = true
	im.byTask[t.Task]++
	return im.write(t, d, hash)
}

// leftOut says why a trajectory is not kept, "" where it is.
func (im *importer) leftOut(t *Trajectory, d *Demo, hash string) string {
	o := im.o
	switch {
	case !o.Unresolved && t.Resolved == nil:
		return "not known to be resolved"
	case !o.Unresolved && !*t.Resolved:
		return "not resolved"
	case len(o.Exits) > 0 && !slices.Contains(o.Exits, t.Exit):
		return "exit status"
	case o.MaxTurns > 0 && len(t.Turns) > o.MaxTurns:
		return "too many turns"
	case o.MaxTokens > 0 && d.size() > o.MaxTokens*bytesPerToken:
		return "too long"
	case d.Trained() == 0:
		return "nothing to train"
	case im.seen[hash]:
		return "there already"
	case o.PerTask > 0 && im.byTask[t.Task] >= o.PerTask:
		return "enough of the task"
	}
	return ""
}

// write writes a demonstration and its entry, under an id that no other one has.
func (im *importer) write(t *Trajectory, d *Demo, hash string) error {
	for n := 2; im.ids[d.ID]; n++ {
		d.ID = fmt.Sprintf("%s-%d", t.ID, n)
	}
	im.ids[d.ID] = true
	masked := 0
	for _, turn := range t.Turns {
		if turn.Masked != "" {
			masked++
			im.sum.Masked[turn.Masked]++
		}
	}
	im.sum.Kept++
	im.sum.Turns += d.Trained()
	if im.demos == nil {
		return nil
	}
	e := Entry{ID: d.ID, Task: t.Task, File: t.File, Row: t.Row, Format: t.Format, Resolved: t.Resolved, Exit: t.Exit,
		Turns: len(t.Turns), Masked: masked, Bytes: d.size(), Hash: hash}
	return milepost.Wrap("trajectories: write", milepost.KindUnavailable, errors.Join(im.index.Encode(e), im.demos.Encode(d)))
}

// counts writes reasons with their numbers, the largest first.
func counts(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d %s", m[k], k)
	}
	if len(keys) == 0 {
		return "nothing was read"
	}
	return strings.Join(keys, ", ")
}
