package evaluate

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	milepost "github.com/milepost-rl/milepost"
)

// ResultFile is the name of the result within an evaluation's folder.
const ResultFile = "result.json"

// ReadResult reads a result: path is an evaluation's folder or its result.json.
func ReadResult(path string) (*Result, error) {
	const op = "evaluate: read result"
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, ResultFile)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.E(op, milepost.KindNotFound, "%s does not exist; an evaluation writes it when it ends", path)
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	var r Result
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s is not a result: %w", path, err)
	}
	if r.Identity.Dataset.Fingerprint == "" || r.Rows == nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s is not a result: identity.dataset.fingerprint or by_task is missing", path)
	}
	for _, t := range r.Rows {
		if t.Graded != len(t.Scores) || t.Resolved < 0 || t.Resolved > t.Graded {
			return nil, milepost.E(op, milepost.KindInvalid, "%s: by_task %q: %d resolved, %d graded, %d scores do not go together", path, t.ID, t.Resolved, t.Graded, len(t.Scores))
		}
	}
	return &r, nil
}

// Comparison is B minus A over the tasks that both graded, paired by task.
type Comparison struct {
	Method    string   `json:"interval_method"`
	A         Identity `json:"a"`
	B         Identity `json:"b"`
	Common    int      `json:"tasks"`                // compared
	OnlyA     int      `json:"only_a"`               // left out: graded in A alone
	OnlyB     int      `json:"only_b"`               // left out: graded in B alone
	Changed   []string `json:"changed,omitempty"`    // left out: the same id, another content
	Differ    []string `json:"settings_that_differ"` // of the two identities
	PassAtK   []Paired `json:"pass_at_k"`
	ScoreAtK  []Paired `json:"score_at_k"`
	Better    []string `json:"better"` // tasks whose resolved share is higher in B
	Worse     []string `json:"worse"`
	Unchanged int      `json:"unchanged"`
}

// Paired is a figure of both at one k, over the common tasks with at least k graded attempts in each.
type Paired struct {
	K          int      `json:"k"`
	A          float64  `json:"a"`
	B          float64  `json:"b"`
	Difference Interval `json:"difference"` // B - A
}

// Compare sets two results beside each other. KindInvalid where they have no task in common.
func Compare(a, b *Result) (*Comparison, error) {
	c := &Comparison{Method: "paired difference, " + Method, A: a.Identity, B: b.Identity, Differ: Differences(a.Identity, b.Identity), Better: []string{}, Worse: []string{}}
	inB := map[string]TaskRow{}
	for _, t := range b.Rows {
		if t.Graded > 0 {
			inB[t.ID] = t
		}
	}
	var pairs [][2]TaskRow
	for _, t := range a.Rows {
		other, both := inB[t.ID]
		switch {
		case t.Graded == 0:
			continue
		case !both:
			c.OnlyA++
			continue
		case t.Hash != other.Hash:
			c.Changed = append(c.Changed, t.ID)
		default:
			pairs = append(pairs, [2]TaskRow{t, other})
		}
		delete(inB, t.ID)
	}
	c.OnlyB, c.Common = len(inB), len(pairs)
	if len(pairs) == 0 {
		return nil, milepost.E("evaluate: compare", milepost.KindInvalid, "the results have no task in common (%d and %d tasks, %d of the same id but another content)", len(a.Rows), len(b.Rows), len(c.Changed))
	}
	slices.SortFunc(pairs, func(x, y [2]TaskRow) int { return cmp.Compare(x[0].ID, y[0].ID) })
	for _, p := range pairs {
		switch d := p[1].resolvedShare() - p[0].resolvedShare(); {
		case d > 0:
			c.Better = append(c.Better, p[0].ID)
		case d < 0:
			c.Worse = append(c.Worse, p[0].ID)
		default:
			c.Unchanged++
		}
	}
	var err error
	if c.PassAtK, err = paired(pairs, func(t TaskRow, k int) (float64, error) { return PassAtK(t.Graded, t.Resolved, k) }); err != nil {
		return nil, err
	}
	c.ScoreAtK, err = paired(pairs, func(t TaskRow, k int) (float64, error) { return ScoreAtK(t.Scores, k) })
	return c, err
}

// paired computes a figure of both for each k that some pair reaches.
func paired(pairs [][2]TaskRow, figure func(TaskRow, int) (float64, error)) ([]Paired, error) {
	var out []Paired
	for k := 1; ; k++ {
		var d []float64
		p := Paired{K: k}
		for _, t := range pairs {
			if min(t[0].Graded, t[1].Graded) < k {
				continue
			}
			a, err := figure(t[0], k)
			if err != nil {
				return nil, err
			}
			b, err := figure(t[1], k)
			if err != nil {
				return nil, err
			}
			p.A, p.B, d = p.A+a, p.B+b, append(d, b-a)
		}
		if len(d) == 0 {
			return out, nil
		}
		p.A, p.B, p.Difference = p.A/float64(len(d)), p.B/float64(len(d)), over(d)
		out = append(out, p)
	}
}
