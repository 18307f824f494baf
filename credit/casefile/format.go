package casefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/milepost-rl/milepost"
)

// fileFormat is a whole case. Episodes and steps stay raw so that an error can name the one it lies in.
type fileFormat struct {
	Config   json.RawMessage          `json:"config"`
	Episodes []json.RawMessage        `json:"episodes"`
	Expected []milepost.EpisodeCredit `json:"expected"`
}

type episodeFormat struct {
	ID         string            `json:"id"`
	Group      *string           `json:"group"` // required
	Task       json.RawMessage   `json:"task"`
	Baseline   json.RawMessage   `json:"baseline"`
	Outcome    outcomeFormat     `json:"outcome"`
	FinalState string            `json:"final_state"`
	Steps      []json.RawMessage `json:"steps"`
}

type taskFormat struct {
	ID            string            `json:"id"`
	Kind          milepost.TaskKind `json:"kind"`
	RelevantFiles []string          `json:"relevant_files"`
	Target        map[string]string `json:"target"`
}

// baselineFormat has no status in most cases: absent means completed.
type baselineFormat struct {
	Trusted bool                  `json:"trusted"`
	Status  *milepost.ProbeStatus `json:"status"`
	Results map[string]string     `json:"results"`
	Failure string                `json:"failure"` // why it is not trusted
}

type outcomeFormat struct {
	Status     milepost.EpisodeStatus `json:"status"`
	Reward     *number                `json:"reward"`
	Objectives map[string]number      `json:"objectives"`
}

type stepFormat struct {
	Index     int                 `json:"index"`
	State     string              `json:"state"`
	Valid     *bool               `json:"valid"`    // required
	Executed  *bool               `json:"executed"` // required
	Exposures []milepost.Exposure `json:"exposures"`
	Probe     *probeFormat        `json:"probe"`
}

type probeFormat struct {
	Status     milepost.ProbeStatus `json:"status"`
	Trusted    bool                 `json:"trusted"`
	Continuity milepost.Continuity  `json:"continuity"`
	Results    map[string]string    `json:"results"`
	Partition  *milepost.Partition  `json:"partition"`
	Merge      *milepost.Merge      `json:"merge"`
	Reanchored bool                 `json:"reanchored"`
	Failure    string               `json:"failure"`
}

// number is a float64 that may also be written as the strings that quoteNonFinite makes.
type number float64

// UnmarshalJSON reads a JSON number or one of "NaN", "Infinity" and "-Infinity".
func (n *number) UnmarshalJSON(data []byte) error {
	for i, name := range nonFinite {
		if string(data) == `"`+name+`"` {
			*n = number([]float64{math.Inf(-1), math.Inf(1), math.NaN()}[i])
			return nil
		}
	}
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("%s is not a number", data)
	}
	*n = number(f)
	return nil
}

// nonFinite are the literals outside JSON that Python's json writes; the longer one first.
var nonFinite = []string{"-Infinity", "Infinity", "NaN"}

// quoteNonFinite puts the literals in quotes where they stand outside a string and leaves everything else as it is.
func quoteNonFinite(data []byte) []byte {
	var out bytes.Buffer
	inString := false
next:
	for i := 0; i < len(data); {
		if !inString {
			for _, name := range nonFinite {
				if bytes.HasPrefix(data[i:], []byte(name)) {
					fmt.Fprintf(&out, "%q", name)
					i += len(name)
					continue next
				}
			}
		}
		if data[i] == '"' {
			inString = !inString
		}
		if inString && data[i] == '\\' && i+1 < len(data) {
			out.WriteByte(data[i])
			i++
		}
		out.WriteByte(data[i])
		i++
	}
	return out.Bytes()
}
