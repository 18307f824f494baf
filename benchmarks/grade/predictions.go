package grade

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/milepost-rl/milepost"
)

// Prediction is a model's patch for one instance.
type Prediction struct {
	InstanceID string  `json:"instance_id"`
	Model      string  `json:"model_name_or_path"`
	Patch      *string `json:"model_patch"` // unified diff; nil where the model gave none
}

// maxPredictionLine bounds one line of a predictions file, in bytes.
const maxPredictionLine = 64 << 20

// ReadPredictions reads a predictions file of SWE-bench: JSONL, a JSON array, or a JSON object of predictions by instance id.
// Errors name the file and the line or entry: KindNotFound, and KindInvalid for what is no prediction, for a column
// of another type, and for an instance that a model has twice.
func ReadPredictions(path string) ([]Prediction, error) {
	const op = "grade: read predictions"
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	entries, err := predictionEntries(data)
	if err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: %w", path, err)
	}
	if len(entries) == 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "%s holds no prediction", path)
	}
	seen := map[[2]string]string{}
	out := make([]Prediction, len(entries))
	for i, e := range entries {
		p, err := decodePrediction(e.raw)
		if err != nil {
			return nil, milepost.E(op, milepost.KindInvalid, "%s %s: %w", path, e.place, err)
		}
		key := [2]string{p.Model, p.InstanceID}
		if before, twice := seen[key]; twice {
			return nil, milepost.E(op, milepost.KindInvalid, "%s %s: model %q has instance %q at %s already", path, e.place, p.Model, p.InstanceID, before)
		}
		seen[key], out[i] = e.place, p
	}
	return out, nil
}

type predictionEntry struct {
	place string
	raw   json.RawMessage
}

// predictionEntries cuts a file into its predictions.
func predictionEntries(data []byte) (out []predictionEntry, err error) {
	trimmed := bytes.TrimSpace(data)
	if bytes.HasPrefix(trimmed, []byte("[")) {
		var list []json.RawMessage
		if err := json.Unmarshal(trimmed, &list); err != nil {
			return nil, fmt.Errorf("a JSON array was expected: %w", err)
		}
		for i, raw := range list {
			out = append(out, predictionEntry{fmt.Sprintf("entry %d", i+1), raw})
		}
		return out, nil
	}
	var byID map[string]json.RawMessage
	if json.Unmarshal(trimmed, &byID) == nil && byID["instance_id"] == nil { // one JSON object that is no prediction itself
		dec := json.NewDecoder(bytes.NewReader(trimmed))
		_, _ = dec.Token() // "{": the text was parsed just now
		for dec.More() {
			name, _ := dec.Token()
			var raw json.RawMessage
			if err := dec.Decode(&raw); err != nil {
				return nil, err
			}
			out = append(out, predictionEntry{fmt.Sprintf("entry %q", name), raw})
		}
		return out, nil
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxPredictionLine)
	for n := 1; lines.Scan(); n++ {
		if line := bytes.TrimSpace(lines.Bytes()); len(line) > 0 {
			out = append(out, predictionEntry{fmt.Sprintf("line %d", n), bytes.Clone(line)})
		}
	}
	return out, lines.Err()
}

func decodePrediction(raw json.RawMessage) (p Prediction, err error) {
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("no prediction {instance_id, model_name_or_path, model_patch}: %w", err)
	}
	if p.InstanceID == "" {
		return p, errors.New("instance_id is missing or empty")
	}
	if p.Model == "" {
		p.Model = "None" // as the referee names it
	}
	return p, nil
}
