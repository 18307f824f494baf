package credit

import (
	"fmt"
	"slices"

	"github.com/milepost-rl/milepost"
)

// Trust (credit.md, "Test states"): a probe is trusted when it completed, the state it tested was proven and its test
// ids are exactly the task's. The prober sets Probe.Trusted; the engine checks status and ids itself, of the baseline
// too. In dense form the ids agree exactly when the report has one state a test of the task. A probe that claims trust
// but fails the check changes no potential and is warned about; one that claims none is simply untrusted.

// plan is what one task and baseline mean for every episode of the task: the two sides of the baseline, the resolved
// mode and the weights. It is read-only once made.
type plan struct {
	task     *milepost.Task
	baseline bool    // trusted; false = no verification credit
	f2p, p2p []int32 // indices into Task.Tests
	passed   int     // tests passed at baseline
	mode     string
	weights  weights
	relevant map[string]int // path -> index, for navigation
}

// newPlan reads the baseline. The warning is "" unless the baseline cannot be used.
func newPlan(m Milestone, task *milepost.Task, baseline *milepost.Probe) (*plan, string) {
	p := &plan{task: task, mode: m.mode(task.Kind), relevant: make(map[string]int, len(task.RelevantFiles))}
	p.weights = m.weights(p.mode)
	for _, f := range task.RelevantFiles {
		if _, ok := p.relevant[f]; !ok {
			p.relevant[f] = len(p.relevant)
		}
	}
	if reason := baselineFault(task, baseline); reason != "" {
		return p, fmt.Sprintf("task %s: no verification credit: %s", task.ID, reason)
	}
	p.baseline = true
	for i, s := range baseline.Report {
		if slices.Contains(task.Flaky, task.Tests[i]) {
			continue // on neither side: its state says nothing of the tree
		}
		if s == milepost.Passed {
			p.passed++
			p.p2p = append(p.p2p, int32(i))
		} else {
			p.f2p = append(p.f2p, int32(i))
		}
	}
	return p, ""
}

func baselineFault(task *milepost.Task, b *milepost.Probe) string {
	switch {
	case b == nil:
		return "there is no baseline"
	case !b.Trusted:
		return "the baseline is not trusted" + because(b.Reason)
	case b.Status != milepost.ProbeCompleted:
		return fmt.Sprintf("the baseline did not complete (status %q)", b.Status)
	case b.Report == nil:
		return "the baseline has no report over the task's tests"
	}
	return reportFault(task, b.Report)
}

// trusted says whether a step's probe may move the potential. The warning is "" unless the probe claims a trust that
// the check refuses.
func (p *plan) trusted(probe *milepost.Probe) (ok bool, warning string) {
	if !probe.Trusted {
		return false, ""
	}
	if probe.Status != milepost.ProbeCompleted {
		return false, fmt.Sprintf("probe claims trust but its status is %q, not completed", probe.Status)
	}
	if probe.Report != nil {
		warning = reportFault(p.task, probe.Report)
	} else if probe.Partition != nil {
		warning = p.partitionFault(probe.Partition)
	} else {
		warning = "probe has neither a report over the task's tests nor counts per partition"
	}
	return warning == "", warning
}

func reportFault(task *milepost.Task, r milepost.TestReport) string {
	if len(r) == len(task.Tests) {
		return ""
	}
	return fmt.Sprintf("report has %d tests, the task has %d", len(r), len(task.Tests))
}

// partitionFault checks the counts against the baseline's two sides. Their sum is not checked (credit.md).
func (p *plan) partitionFault(c *milepost.Partition) string {
	if !p.baseline {
		return "" // counts mean nothing without a baseline, which has been warned about
	}
	if c.F2P.Expected != len(p.f2p) || c.P2P.Expected != len(p.p2p) {
		return fmt.Sprintf("partition expects %d f2p and %d p2p tests, the baseline has %d and %d",
			c.F2P.Expected, c.P2P.Expected, len(p.f2p), len(p.p2p))
	}
	for _, s := range []milepost.PartitionCounts{c.F2P, c.P2P} {
		if min(s.Passed, s.Failed, s.Errors, s.Skipped, s.NotRun) < 0 {
			return "partition has a negative count"
		}
	}
	return ""
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
