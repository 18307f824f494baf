package testlog

import (
	"bytes"
	"encoding/json"

	"github.com/milepost-rl/milepost"
)

// goEvent is one line of `go test -json` (go doc cmd/test2json).
type goEvent struct {
	Action  string
	Package string
	Test    string
}

// parseGoTest reads the output of `go test -json`. The id of a test is "PACKAGE::NAME", sub-tests by their full name
// ("example.com/m/pkg::TestX/case_1"). A package that fails, be it built or run, gives ERROR to its tests that have no
// state: those that a panic or a time-out kept from ending. Lines that are no event, such as the compiler's, are passed
// over; what a test prints is inside output events and never one itself.
func parseGoTest(log []byte, _ func(string) bool, t *tally) {
	t.flat = true // a package says nothing of those below its folder
	for line := range lines(log) {
		if !bytes.HasPrefix(line, []byte("{")) || !bytes.Contains(line, []byte(`"Action":"`)) {
			continue
		}
		if bytes.Contains(line, []byte(`"Action":"output"`)) {
			continue // most lines, and none of them a result
		}
		var e goEvent
		if json.Unmarshal(line, &e) != nil || e.Package == "" {
			continue
		}
		state, ends := map[string]milepost.TestState{"pass": milepost.Passed, "fail": milepost.Failed, "skip": milepost.Skipped}[e.Action]
		switch {
		case !ends:
		case e.Test == "" && state == milepost.Failed:
			t.addContainer(e.Package, milepost.Errored)
		case e.Test != "" && len(e.Package)+len(e.Test)+2 <= maxID:
			t.add(e.Package+"::"+e.Test, state)
		}
	}
}
