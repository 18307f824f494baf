// Package casefile reads and writes the case format of the credit rules: a configuration, episodes with their probes by
// test name, and the expected credit. It interns test names into the dense vectors that package credit works on.
//
// The format is strict: an unknown field, a test state that does not exist, a step that does not say whether its call was
// valid and executed, an unknown word or a target that is not PASSED is an error that names episode and step. A field of the format goes into format.go, its meaning into convert.go.
package casefile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"reflect"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

const opDecode = "casefile: decode"

// Case is one decoded case.
type Case struct {
	Config   credit.Config            // the case's fields over credit.Default
	Inputs   []credit.Input           // in the order of the file; equal tasks and baselines share one value
	Expected []milepost.EpisodeCredit // nil where the case states none
}

// Decode reads one case. A case without config takes the defaults; one without a list of episodes is refused, an empty list
// is a case without results. Errors are of kind invalid and name the place. Numbers written as NaN, Infinity or -Infinity
// (as Python's json does) are read, so that the engine can refuse them by episode.
func Decode(r io.Reader) (*Case, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, milepost.Wrap(opDecode, milepost.KindUnavailable, err)
	}
	var file fileFormat
	if err := strict(quoteNonFinite(data), &file); err != nil {
		return nil, milepost.Wrap(opDecode, milepost.KindInvalid, err)
	}
	if file.Episodes == nil {
		return nil, milepost.E(opDecode, milepost.KindInvalid,
			"the case has no episodes; allowed: an object with a list `episodes`, and with `config` and `expected` where wanted")
	}
	c := &Case{Config: credit.Default(), Expected: file.Expected}
	if len(file.Config) > 0 {
		if err := strict(file.Config, &c.Config); err != nil {
			return nil, milepost.E(opDecode, milepost.KindInvalid, "config: %w", err)
		}
	}
	in := interner{tasks: make(map[string]*milepost.Task), baselines: make(map[baselineKey]*milepost.Probe)}
	for i, raw := range file.Episodes {
		input, err := in.episode(i, raw)
		if err != nil {
			return nil, milepost.Wrap(opDecode, milepost.KindInvalid, err)
		}
		c.Inputs = append(c.Inputs, input)
	}
	return c, nil
}

// Recompute runs the engine over the case.
func (c *Case) Recompute() (credit.Result, error) {
	engine, err := credit.New(c.Config)
	if err != nil {
		return credit.Result{}, err
	}
	return engine.Assign(c.Inputs)
}

// Encode writes credit as the JSON list that a case calls `expected`.
func Encode(w io.Writer, episodes []milepost.EpisodeCredit) error {
	if episodes == nil {
		episodes = []milepost.EpisodeCredit{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return milepost.Wrap("casefile: encode", milepost.KindUnavailable, e.Encode(episodes))
}

// plainly says in the words of the format what json says in those of Go.
func plainly(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return milepost.E(opDecode, milepost.KindInvalid, "there is nothing; allowed: one JSON value")
	case !errors.As(err, &wrong):
		return err
	}
	got, allowed := wrong.Value, map[reflect.Kind]string{reflect.Float64: "a finite number", reflect.Int: "a whole number", reflect.Bool: "true or false",
		reflect.String: "a string", reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object"}[wrong.Type.Kind()]
	if allowed == "" {
		return err
	}
	if got == "string" && wrong.Type.Kind() == reflect.Float64 {
		got = "string, NaN or Infinity"
	}
	return milepost.E(opDecode, milepost.KindInvalid, "%s is of the wrong type: %s; allowed: %s", cmp.Or(wrong.Field, "the value"), got, allowed)
}

// strict decodes exactly one JSON value and refuses unknown fields.
func strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return plainly(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return milepost.E(opDecode, milepost.KindInvalid, "there is more after the first JSON value")
	}
	return nil
}
