package trajectories

import (
	"encoding/json"
	"os"

	milepost "github.com/milepost-rl/milepost"
)

// ReadVerdicts reads which instances were resolved from a report of SWE-bench's harness: that of a run (resolved_ids,
// unresolved_ids and the like) or of instances ({id: {resolved: true}}).
func ReadVerdicts(path string) (map[string]bool, error) {
	const op = "trajectories: read report"
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, milepost.E(op, milepost.KindNotFound, "%s: %w", path, err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: no JSON object: %w", path, err)
	}
	out := map[string]bool{}
	lists := 0
	for name, resolved := range map[string]bool{"unresolved_ids": false, "error_ids": false, "empty_patch_ids": false, "resolved_ids": true} {
		if fields[name] == nil {
			continue
		}
		var ids []string
		if err := json.Unmarshal(fields[name], &ids); err != nil {
			return nil, milepost.E(op, milepost.KindInvalid, "%s: field %s: %w", path, name, err)
		}
		for _, id := range ids {
			out[id] = out[id] || resolved
		}
		if resolved {
			lists++
		}
	}
	if lists > 0 {
		return out, nil
	}
	for id, raw := range fields {
		var one struct{ Resolved *bool }
		if err := json.Unmarshal(raw, &one); err != nil || one.Resolved == nil {
			return nil, milepost.E(op, milepost.KindInvalid, "%s: field %s: neither resolved_ids of a run, nor {id: {resolved: true or false}}", path, id)
		}
		out[id] = *one.Resolved
	}
	return out, nil
}
