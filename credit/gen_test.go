package credit

import (
	"fmt"
	"math"
	"testing"

	"github.com/milepost-rl/milepost"
	"pgregory.net/rapid"
)

// world says what drawInputs may draw.
type world struct {
	kind                                        milepost.TaskKind
	reanchor, merges, lost, partitions, exclude bool
}

var everything = world{kind: milepost.BugRepair, reanchor: true, merges: true, lost: true, partitions: true, exclude: true}

// drawInputs draws one to three groups of episodes, each with its task and baseline.
func drawInputs(t *rapid.T, w world) []Input {
	var out []Input
	for g := range rapid.IntRange(1, 3).Draw(t, "groups") {
		task := &milepost.Task{ID: fmt.Sprintf("task-%d", g), Kind: w.kind, RelevantFiles: []string{"a.py", "b.py", "c.py"}}
		tests := rapid.IntRange(0, 6).Draw(t, "tests")
		for i := range tests {
			task.Tests = append(task.Tests, fmt.Sprintf("test_%d", i))
		}
		baseline := &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: rapid.IntRange(0, 9).Draw(t, "b") > 0, Report: drawReport(t, tests)}
		for i := range rapid.IntRange(1, 5).Draw(t, "n") {
			out = append(out, Input{Episode: drawEpisode(t, w, fmt.Sprint("g", g), i, baseline, tests), Task: task, Baseline: baseline})
		}
	}
	return out
}

func drawEpisode(t *rapid.T, w world, group string, i int, baseline *milepost.Probe, tests int) *milepost.Episode {
	e := &milepost.Episode{ID: fmt.Sprintf("%s-%d", group, i), Group: group, Status: milepost.EpisodeCompleted,
		FinalState: drawState(t), Outcome: milepost.Outcome{Reward: drawReward(t),
			Objectives: map[string]float64{"resolved": drawReward(t), "brevity": drawReward(t)}}}
	if w.exclude && rapid.IntRange(0, 9).Draw(t, "infra") == 0 {
		e.Status = milepost.EpisodeInfra
	}
	e.Steps = make([]milepost.Step, rapid.IntRange(0, 8).Draw(t, "steps"))
	for k := 0; k < len(e.Steps); {
		n := 1
		p := drawProbe(t, w, baseline, tests)
		if w.merges && p != nil && rapid.IntRange(0, 3).Draw(t, "merge") == 0 {
			n = rapid.IntRange(1, len(e.Steps)-k).Draw(t, "k")
		}
		for j := range n {
			part := p
			if n > 1 {
				c := *p
				c.Merge = &milepost.Merge{ID: fmt.Sprint("m", k), Size: n, Index: j}
				part = &c
			}
			e.Steps[k+j] = milepost.Step{Index: k + j, State: drawState(t), Valid: rapid.Bool().Draw(t, "valid"),
				Executed: rapid.Bool().Draw(t, "executed"), Probe: part, TokenEnd: rapid.IntRange(0, 5).Draw(t, "tokens"),
				Exposures: []milepost.Exposure{{Path: rapid.SampledFrom([]string{"a.py", "b.py", "x.py"}).Draw(t, "path"),
					Level:      rapid.SampledFrom([]milepost.ExposureLevel{milepost.ExposureSearch, milepost.ExposureRead}).Draw(t, "level"),
					Confidence: rapid.SampledFrom([]string{"high", "low"}).Draw(t, "confidence")}}}
		}
		k += n
	}
	return e
}

// withValues gives each episode one sample with the tokens of its steps in order, and a value for each.
func withValues(t *rapid.T, inputs []Input) []Input {
	for i := range inputs {
		e := inputs[i].Episode
		var sample milepost.Sample
		for k := range e.Steps {
			for range e.Steps[k].TokenEnd - e.Steps[k].TokenStart {
				sample.Steps = append(sample.Steps, int32(k))
				inputs[i].Values = append(inputs[i].Values, rapid.Float64Range(-1, 1).Draw(t, "value"))
			}
		}
		e.Samples = []milepost.Sample{sample}
		if inputs[i].Values == nil {
			inputs[i].Values = []float64{}
		}
	}
	return inputs
}

func drawProbe(t *rapid.T, w world, baseline *milepost.Probe, tests int) *milepost.Probe {
	p := &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Continuity: milepost.ContinuityKept, Report: drawReport(t, tests)}
	switch rapid.IntRange(0, 9).Draw(t, "probe") {
	case 0, 1:
		return nil
	case 2:
		p.Status, p.Trusted, p.Report = milepost.ProbeTimeout, false, nil
		if w.lost {
			p.Continuity = milepost.ContinuityLost
		}
	case 3:
		p.Trusted = false
	case 4:
		p.Report = append(p.Report, milepost.Passed) // not the task's tests
	case 5:
		p.Reanchored = w.reanchor
	case 6:
		if w.partitions {
			p.Partition, p.Report = countsOf(baseline.Report, p.Report), nil
		}
	}
	return p
}

// countsOf are the counts of a report per side of the baseline.
func countsOf(baseline, report milepost.TestReport) *milepost.Partition {
	var c milepost.Partition
	for i, s := range report {
		side := &c.F2P
		if baseline[i] == milepost.Passed {
			side = &c.P2P
		}
		side.Expected++
		switch s {
		case milepost.Passed:
			side.Passed++
		case milepost.Failed:
			side.Failed++
		case milepost.Errored:
			side.Errors++
		case milepost.Skipped:
			side.Skipped++
		case milepost.NotRun:
			side.NotRun++
		}
	}
	return &c
}

func drawReport(t *rapid.T, tests int) milepost.TestReport {
	r := make(milepost.TestReport, tests)
	for i := range r {
		r[i] = milepost.TestState(rapid.IntRange(0, 4).Draw(t, "state"))
	}
	return r
}

func drawState(t *rapid.T) string {
	return rapid.SampledFrom([]string{"s0", "s1", "s2", "s3"}).Draw(t, "s")
}

func drawReward(t *rapid.T) float64 { return float64(rapid.IntRange(0, 10).Draw(t, "reward")) / 10 }

// drawConfig draws an estimator that Assign accepts and the switches.
func drawConfig(t *rapid.T) Config {
	c := Default()
	c.Estimator = rapid.SampledFrom(assignable()).Draw(t, "estimator")
	c.GroupNorm = rapid.SampledFrom([]string{NormMeanStd, NormMean}).Draw(t, "norm")
	c.ProcessBaseline = rapid.SampledFrom([]string{BaselineNone, BaselineGroupMean}).Draw(t, "baseline")
	c.Milestone.Mode = rapid.SampledFrom([]string{ModeAuto, ModeNormalized, ModePassCount}).Draw(t, "mode")
	c.Milestone.Enabled = rapid.IntRange(0, 5).Draw(t, "enabled") > 0
	return c
}

// assignable are the estimators that need no value head.
func assignable() []string {
	var out []string
	for _, name := range Estimators() {
		if name != "ppo_gae" {
			out = append(out, name)
		}
	}
	return out
}

// fataler is what testing.T and rapid.T share.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func mustAssign(t fataler, c Config, inputs []Input) Result {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	r, err := e.Assign(inputs)
	if err != nil {
		t.Fatalf("assign: %v", err)
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

func sameCredit(t fataler, got, want milepost.EpisodeCredit) {
	t.Helper()
	if got.ID != want.ID || got.Excluded != want.Excluded || len(got.Steps) != len(want.Steps) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for k := range want.Steps {
		a, b := terms(got.Steps[k]), terms(want.Steps[k])
		for j := range b {
			if !near(a[j], b[j]) {
				t.Fatalf("episode %s step %d: got %+v, want %+v", want.ID, k, got.Steps[k], want.Steps[k])
			}
		}
	}
}

func terms(c milepost.StepCredit) []float64 {
	return []float64{c.PhiVer, c.PhiNav, c.R, c.B, c.F, c.P, c.AOut, c.Advantage}
}

// oneEpisode is an input of one bug-repair episode with the given probes; f2p and p2p tests in this order.
func oneEpisode(f2p, p2p int, probes ...*milepost.Probe) Input {
	task := &milepost.Task{ID: "t", Kind: milepost.BugRepair, Tests: make([]string, f2p+p2p)}
	report := make(milepost.TestReport, f2p+p2p)
	for i := range report {
		report[i] = milepost.Failed
		if i >= f2p {
			report[i] = milepost.Passed
		}
	}
	e := &milepost.Episode{ID: "e", Group: "g", Status: milepost.EpisodeCompleted}
	for t, p := range probes {
		e.Steps = append(e.Steps, milepost.Step{Index: t, Valid: true, Executed: true, Probe: p})
	}
	return Input{Episode: e, Task: task, Baseline: &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: report}}
}

// seen is a trusted probe from letters, one a test: N P F E S.
func seen(t testing.TB, letters string) *milepost.Probe {
	t.Helper()
	var r milepost.TestReport
	if err := r.UnmarshalText([]byte(letters)); err != nil {
		t.Fatal(err)
	}
	return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: r}
}
