package testlog

import (
	"bytes"
	"encoding/json"

	"github.com/milepost-rl/milepost"
)

// ResidentLine is one line of the "resident" format, written by the resident runner of package testrun as each test ends:
// a JSON object with a state by its full name and either the test or the container (module or class) it is about.
type ResidentLine struct {
	Test      string `json:"test,omitempty"`      // "pkg.mod.Class.test_x"
	Container string `json:"container,omitempty"` // "pkg.mod" or "pkg.mod.Class": nothing below it could run
	State     string `json:"state"`               // PASSED FAILED ERROR SKIPPED
}

// parseResident reads ResidentLines. Lines that are none (torn by a dying process, or printed into the pipe) are passed over.
func parseResident(log []byte, _ func(string) bool, t *tally) {
	for line := range lines(log) {
		if !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		var l ResidentLine
		if json.Unmarshal(line, &l) != nil {
			continue
		}
		state, err := milepost.ParseTestState(l.State)
		if err != nil {
			continue
		}
		t.add(l.Test, state)
		t.addContainer(l.Container, state)
	}
}
