package predictions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

// Prediction is one patch for one instance.
type Prediction struct {
	InstanceID string
	Model      string  // model_name_or_path; in Pro's form, prefix
	Patch      *string // unified diff; nil = the model gave none (null), which is not the same as an empty one
}

// wire is SWE-bench's form. Source: swebench 5.0.2, harness/utils.py and harness/grading.py.
type wire struct {
	InstanceID string  `json:"instance_id"`
	Model      string  `json:"model_name_or_path"`
	Patch      *string `json:"model_patch"`
}

// proWire is the form of SWE-bench Pro. Source: scaleapi/SWE-bench_Pro-os, swe_bench_pro_eval.py.
type proWire struct {
	InstanceID string  `json:"instance_id"`
	Patch      *string `json:"patch"`
	Prefix     string  `json:"prefix"`
}

// maxFile bounds a file of predictions, in bytes.
const maxFile = 2 << 30

// Read reads predictions in any of the forms: one object a line, a JSON array, or an object from instance id to
// prediction, each with SWE-bench's fields or Pro's. An instance comes once. Errors are KindInvalid and name the file,
// the entry and its field; name stands for the file in them.
func Read(r io.Reader, name string) ([]Prediction, error) {
	const op = "predictions: read"
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if len(data) > maxFile {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: larger than %d MiB", name, maxFile>>20)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	entries, err := split(data)
	if err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: %w", name, err)
	}
	if len(entries) == 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: holds no prediction", name)
	}
	out := make([]Prediction, 0, len(entries))
	seen := map[string]string{}
	for _, e := range entries {
		p, err := decode(e)
		if err == nil && seen[p.InstanceID] != "" {
			err = fmt.Errorf("field instance_id: %q is also in %s", p.InstanceID, seen[p.InstanceID])
		}
		if err != nil {
			return nil, milepost.E(op, milepost.KindInvalid, "%s: %s: %w", name, e.place, err)
		}
		seen[p.InstanceID] = e.place
		out = append(out, p)
	}
	return out, nil
}

// entry is one prediction as it stands in a file.
type entry struct {
	place string // for messages
	key   string // of an object by instance ids; else ""
	body  json.RawMessage
}

// split cuts a file into its predictions.
func split(data []byte) ([]entry, error) {
	trimmed := bytes.TrimSpace(data)
	if len(trimmed) > 0 && trimmed[0] == '[' {
		return splitArray(trimmed)
	}
	if len(trimmed) > 0 && trimmed[0] == '{' {
		if byID, ok := splitObject(trimmed); ok {
			return byID, nil
		}
	}
	var out []entry
	lines := bufio.NewReader(bytes.NewReader(data))
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			out = append(out, entry{place: fmt.Sprintf("line %d", n), body: line})
		}
		if err != nil {
			return out, nil // io.EOF: the reader is over memory
		}
	}
}

func splitArray(data []byte) ([]entry, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("not a JSON array: %w", err)
	}
	var out []entry
	for i, e := range list {
		out = append(out, entry{place: fmt.Sprintf("entry %d", i+1), body: e})
	}
	return out, nil
}

// splitObject reads an object from instance ids to predictions; ok is false for one prediction, or lines of them.
func splitObject(data []byte) (out []entry, ok bool) {
	var byID map[string]json.RawMessage
	if json.Unmarshal(data, &byID) != nil || byID["instance_id"] != nil {
		return nil, false
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		out = append(out, entry{place: fmt.Sprintf("entry %q", id), key: id, body: byID[id]})
	}
	return out, true
}

// decode reads one prediction in either form.
func decode(e entry) (Prediction, error) {
	if !utf8.Valid(e.body) {
		return Prediction{}, errors.New("not UTF-8")
	}
	if at := benchmarks.LoneSurrogate(e.body); at >= 0 {
		return Prediction{}, fmt.Errorf("%s is half of a surrogate pair, which is no text", e.body[at:at+6])
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(e.body, &fields); err != nil {
		return Prediction{}, fmt.Errorf("not a JSON object: %w", err)
	}
	id, err := str(fields, "instance_id")
	switch {
	case err != nil:
		return Prediction{}, err
	case id == nil && e.key != "":
		id = &e.key
	case id == nil || strings.TrimSpace(*id) == "":
		return Prediction{}, errors.New("field instance_id: missing or empty")
	case e.key != "" && *id != e.key:
		return Prediction{}, fmt.Errorf("field instance_id: %q stands under %q", *id, e.key)
	}
	model, patch := "model_name_or_path", "model_patch"
	if _, swe := fields[patch]; !swe {
		if _, pro := fields["patch"]; !pro {
			return Prediction{}, errors.New("neither field model_patch (SWE-bench) nor field patch (SWE-bench Pro) is there")
		}
		model, patch = "prefix", "patch"
	}
	p := Prediction{InstanceID: *id}
	if p.Patch, err = str(fields, patch); err != nil {
		return Prediction{}, err
	}
	name, err := str(fields, model)
	if name != nil {
		p.Model = *name
	}
	return p, err
}

// str is a string field; nil where it is absent or null.
func str(fields map[string]json.RawMessage, name string) (*string, error) {
	var s *string
	if v, ok := fields[name]; ok {
		if err := json.Unmarshal(v, &s); err != nil {
			return nil, fmt.Errorf("field %s: a string or null is wanted", name)
		}
	}
	return s, nil
}

// Write writes predictions in SWE-bench's form, one object a line.
func Write(w io.Writer, list []Prediction) error {
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	for _, p := range list {
		if err := enc.Encode(wire(p)); err != nil {
			return milepost.Wrap("predictions: write", milepost.KindUnavailable, err)
		}
	}
	return milepost.Wrap("predictions: write", milepost.KindUnavailable, b.Flush())
}

// WritePro writes predictions in the form of SWE-bench Pro: a JSON array of instance_id, patch and prefix, which is the
// model's name.
func WritePro(w io.Writer, list []Prediction) error {
	out := make([]proWire, 0, len(list))
	for _, p := range list {
		out = append(out, proWire{p.InstanceID, p.Patch, p.Model})
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return milepost.Wrap("predictions: write", milepost.KindUnavailable, enc.Encode(out))
}
