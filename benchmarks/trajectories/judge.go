package trajectories

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// What may be masked: a turn that is masked stays in the conversation, as context, and is not trained. Nebius masks turns that
// led to format errors (arXiv 2508.03501, rejection fine-tuning).
const (
	MaskFormat = "format" // no call, a call of an unknown tool, arguments that break its schema, what the record calls a format error
	MaskErrors = "errors" // these, and calls that were answered with an error
	MaskNone   = "none"   // nothing but what the record masks itself
)

// Masks lists the values.
func Masks() []string { return []string{MaskFormat, MaskErrors, MaskNone} }

// judge masks the turns of a trajectory. tools are those that calls are held to, nil for none.
func (t *Trajectory) judge(mask string, tools []toolcall.Spec) error {
	if mask == MaskNone {
		return nil
	}
	schemas, err := compile(tools)
	if err != nil {
		return err
	}
	calls := t.calls()
	for i := range t.Turns {
		turn := &t.Turns[i]
		if turn.Masked != "" {
			continue
		}
		switch {
		case turn.Call == nil && calls:
			turn.Masked = "no tool call"
		case turn.Call != nil:
			turn.Masked = callFault(*turn.Call, tools, schemas)
		}
		if turn.Masked == "" && mask == MaskErrors && isError(turn.Observed) {
			turn.Masked = "answered with an error"
		}
	}
	return nil
}

// compile readies the schemas of tools, by name.
func compile(tools []toolcall.Spec) (map[string]*jsonschema.Schema, error) {
	out := map[string]*jsonschema.Schema{}
	for i, s := range tools {
		at := fmt.Sprintf("tools[%d].function.parameters", i)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(s.Parameters))
		if err != nil {
			return nil, field(at, "not JSON: %w", err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("tool.json", doc); err != nil {
			return nil, field(at, "no JSON schema: %w", err)
		}
		if out[s.Name], err = c.Compile("tool.json"); err != nil {
			return nil, field(at, "no JSON schema: %w", err)
		}
	}
	return out, nil
}

// callFault says what is wrong with a call, "" where nothing is.
func callFault(c toolcall.Call, tools []toolcall.Spec, schemas map[string]*jsonschema.Schema) string {
	var args map[string]any
	if err := json.Unmarshal(c.Arguments, &args); err != nil || args == nil {
		return "arguments that are no JSON object"
	}
	if len(tools) == 0 {
		return ""
	}
	schema, ok := schemas[c.Name]
	if !ok {
		return "unknown tool " + c.Name
	}
	inst, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Arguments))
	if err == nil {
		err = schema.Validate(inst)
	}
	var broken *jsonschema.ValidationError
	if errors.As(err, &broken) {
		return "arguments that break the schema of " + c.Name
	}
	return ""
}

// isError reports whether an answer begins as the systems' tools begin an error.
func isError(observed string) bool {
	text := strings.TrimPrefix(strings.TrimSpace(observed), "OBSERVATION:\n")
	for _, start := range []string{"ERROR:", "Error:", "error:", "No replacement was performed", "Invalid `"} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	return false
}
