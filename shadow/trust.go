package shadow

import (
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
)

// judge turns what a worker claims into a probe and decides on trust (credit: "Test states", "Untrusted probes").
//
// Trusted: the run completed, the tree it proved is the tree that was asked for, the report has one state for each of the
// task's tests, at least one of them was reported, and no other id was. NOT_RUN is a state like the others.
//
// Continuity is lost only where the state after the step cannot be told any more: its recorded difference does not make
// its tree (status tree), or bytes of it are gone. Otherwise it is kept, because every probe stands alone and the next
// trusted one proves its own state.
func judge(tests int, tree string, r *wireResult) milepost.Probe {
	p := milepost.Probe{Tree: r.Tree, Status: r.Status, Report: r.Report, Reason: r.Reason, Continuity: milepost.ContinuityKept,
		Worker: r.Worker, Attempt: r.Attempt, Ran: r.Ran}
	switch {
	case r.Status == milepost.ProbeTreeWrong:
		p.Continuity = milepost.ContinuityLost
		p.Report = nil
	case r.Status != milepost.ProbeCompleted:
		p.Report = nil
	case r.Tree != tree:
		p.Status, p.Continuity, p.Report = milepost.ProbeTreeWrong, milepost.ContinuityLost, nil
		p.Reason = fmt.Sprintf("the worker tested tree %q, not %s", r.Tree, tree)
	case len(r.Report) != tests:
		p.Reason = fmt.Sprintf("the report has %d states for %d tests", len(r.Report), tests)
		p.Report = nil // not dense over the task's tests: unusable even as information
	case len(r.Extra) > 0:
		p.Reason = fmt.Sprintf("%d ids are not the task's: %s", len(r.Extra), abridge(r.Extra, 5))
	case tests == 0 || r.Report.Count(milepost.NotRun) == tests:
		p.Status, p.Report = milepost.ProbeUnparsed, nil
		p.Reason = "no test of the task was reported"
	default:
		p.Trusted, p.Reason, p.Continuity = true, "", ""
	}
	if !p.Trusted && p.Reason == "" {
		p.Reason = "status " + string(p.Status)
	}
	return p
}

// knownStatus reports whether s is one that a worker may send.
func knownStatus(s milepost.ProbeStatus) bool {
	switch s {
	case milepost.ProbeCompleted, milepost.ProbeTimeout, milepost.ProbeMemory, milepost.ProbeTreeWrong, milepost.ProbeInfra, milepost.ProbeUnparsed:
		return true
	}
	return false
}

func abridge(list []string, n int) string {
	if len(list) > n {
		return strings.Join(list[:n], ", ") + ", …"
	}
	return strings.Join(list, ", ")
}
