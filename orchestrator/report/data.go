package report

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// Data are the facts of a report.
type Data struct {
	Name      string           `json:"name"`
	Seed      uint64           `json:"seed"`
	Schema    int              `json:"schema"`
	Model     string           `json:"model"`   // directory of version 0
	Program   string           `json:"program"` // version of the program that wrote the report
	Stop      string           `json:"stop"`    // "" while the run has not ended
	Started   time.Time        `json:"started"`
	Active    float64          `json:"active_s"` // seconds the run was up
	Epochs    uint64           `json:"epochs"`   // times it was started
	Updates   int              `json:"updates"`
	Skipped   []int            `json:"skipped_updates"`
	Served    int32            `json:"served_version"`
	Best      int32            `json:"best_version"`
	BestRate  float64          `json:"best_validation_rate"` // -1 without validation
	Heldout   Heldout          `json:"heldout"`
	Evals     []EvalPoint      `json:"validations"`
	Metrics   []UpdateMetrics  `json:"metrics"`
	Warnings  []Warning        `json:"warnings"`
	Hidden    *float64         `json:"hidden_share"`     // of all verification time of the updates; nil where none was measured
	GapMax    *float64         `json:"logprob_gap_mean"` // largest mean gap of an update; nil before the first
	Pushes    []Push           `json:"pushes"`
	Samples   []Sample         `json:"-"`
	Missing   []string         `json:"-"` // kinds of sample episode that the run does not have
	Retention RetentionSection `json:"retention"`
	Config    string           `json:"-"` // config.yaml
}

// Heldout is the comparison on the held-out tasks. Before, After are nil where that evaluation was not made (yet).
type Heldout struct {
	Before *orchestrator.Evaluation `json:"before"`
	After  *orchestrator.Evaluation `json:"after"`
	Gain   *Gain                    `json:"gain"`
}

// Gain is the paired gain over the tasks of both evaluations with its 95 % interval.
type Gain struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Tasks int     `json:"tasks"`
}

// AboveZero reports whether the whole interval lies above zero.
func (g Gain) AboveZero() bool { return g.Low > 0 }

// Verdict is the interval in words.
func (g Gain) Verdict() string {
	switch {
	case g.Low > 0:
		return "the interval lies above zero"
	case g.High < 0:
		return "the interval lies below zero"
	}
	return "the interval holds zero"
}

// EvalPoint is one validation.
type EvalPoint struct {
	Update int     `json:"update"`
	Rate   float64 `json:"rate"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Graded int     `json:"graded"`
}

// UpdateMetrics are the metrics of one update.
type UpdateMetrics struct {
	Update int                `json:"update"`
	Values map[string]float64 `json:"values"`
}

// Warning is one warning of orchestrator.Health.
type Warning struct {
	Update int    `json:"update"`
	Text   string `json:"text"`
}

// Push is one push of weights. The canary fields are NaN-free: a version without a record has none.
type Push struct {
	Version int                `json:"version"`
	Values  map[string]float64 `json:"values"`
}

// Load reads a run folder. Parts that the run does not have yet are empty; a damaged part is an error of kind corrupt,
// a folder without run.json one of kind not_found.
func Load(f *orchestrator.Folder) (*Data, error) {
	header, err := f.Header()
	if err != nil {
		return nil, err
	}
	if header.Schema != orchestrator.SchemaVersion {
		return nil, milepost.E("report: load", milepost.KindInvalid, "%s has schema %d; this program reads %d", f.Dir, header.Schema, orchestrator.SchemaVersion)
	}
	d := &Data{Name: header.Name, Seed: header.Seed, Schema: header.Schema, Model: header.Model, Program: programVersion()}
	h, err := optional(f.History())
	if err != nil {
		return nil, err
	}
	d.Stop, d.Started, d.Active, d.Epochs = h.Stop, h.Started, h.Active, h.Epochs
	d.Updates, d.Skipped, d.Served, d.Best, d.BestRate = h.Updates, h.Skipped, h.Served(), h.Best, h.BestRate
	if err := d.loadEvaluations(f, h); err != nil {
		return nil, err
	}
	if err := d.loadFlaky(f); err != nil {
		return nil, err
	}
	if err := d.loadMetrics(f); err != nil {
		return nil, err
	}
	if err := d.loadSamples(f); err != nil {
		return nil, err
	}
	if d.Retention, err = loadRetention(f); err != nil {
		return nil, err
	}
	d.Config, err = optional(readText(f.Path("config.yaml")))
	return d, err
}

// optional turns not_found into the zero value: the run does not have that part yet.
func optional[T any](v T, err error) (T, error) {
	if milepost.KindOf(err) == milepost.KindNotFound {
		var zero T
		return zero, nil
	}
	return v, err
}

func readText(path string) (string, error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return "", milepost.Wrap("report: load", milepost.KindNotFound, err)
	}
	return string(b), milepost.Wrap("report: load", milepost.KindUnavailable, err)
}

func (d *Data) loadEvaluations(f *orchestrator.Folder, h orchestrator.History) error {
	for _, e := range h.Evals {
		v, err := f.Evaluation(e.Eval)
		if err != nil {
			return err
		}
		switch {
		case e.Eval == orchestrator.EvalBefore:
			d.Heldout.Before = &v
		case e.Eval == orchestrator.EvalAfter:
			d.Heldout.After = &v
		default:
			d.Evals = append(d.Evals, EvalPoint{Update: e.Update, Rate: v.Rate, Low: v.Low, High: v.High, Graded: v.Graded})
		}
	}
	if d.Heldout.Before != nil && d.Heldout.After != nil {
		var g Gain
		g.Value, g.Low, g.High, g.Tasks = orchestrator.Gain(*d.Heldout.Before, *d.Heldout.After)
		d.Heldout.Gain = &g
	}
	return nil
}

func (d *Data) loadMetrics(f *orchestrator.Folder) error {
	all, err := optional(f.Metrics())
	if err != nil {
		return err
	}
	var waited, verified float64
	for u, m := range all {
		if _, ok := m["canary_gap_mean"]; ok {
			d.Pushes = append(d.Pushes, Push{Version: u, Values: m})
		}
		if u == 0 || len(m) == 0 {
			continue // 0 holds the first push only
		}
		d.Metrics = append(d.Metrics, UpdateMetrics{Update: u, Values: m})
		for _, w := range orchestrator.Health(m) {
			d.Warnings = append(d.Warnings, Warning{Update: u, Text: w})
		}
		waited += m["probe_barrier_wait_s"]
		verified += m["probe_step_time_s"] + m["probe_verdict_time_s"]
		if g, ok := m["logprob_gap_mean"]; ok && (d.GapMax == nil || g > *d.GapMax) {
			d.GapMax = &g
		}
	}
	if verified > 0 {
		share := max(0, 1-waited/verified)
		d.Hidden = &share
	}
	return nil
}

// programVersion names the program that runs: module version or revision, and Go.
func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	if version == "" || version == "(devel)" {
		version = "development"
	}
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" })
	if i >= 0 && !strings.Contains(version, info.Settings[i].Value[:min(12, len(info.Settings[i].Value))]) {
		version += " " + info.Settings[i].Value[:min(12, len(info.Settings[i].Value))]
	}
	return fmt.Sprintf("%s, %s", version, info.GoVersion)
}
