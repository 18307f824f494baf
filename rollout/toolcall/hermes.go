package toolcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
)

// hermes is the JSON convention of Hermes and Qwen2.5:
//
//	<tool_call>
//	{"name": "read_file", "arguments": {"path": "a.py"}}
//	</tool_call>
//
// The JSON value is read by a JSON decoder, not searched for by its closing tag, so tags inside strings do no harm.
type hermes struct{}

func (hermes) Name() string { return Hermes }

func (hermes) Shape() string {
	return openTag + "\n" + `{"name": "TOOL", "arguments": {"KEY": "VALUE"}}` + "\n" + closeTag
}

func (hermes) Parse(text string) ([]Call, error) {
	return blocks("toolcall: parse hermes", text, hermesBody)
}

func hermesBody(rest string) (Call, string, error) {
	dec := json.NewDecoder(strings.NewReader(rest))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return Call{}, "", jsonTrouble(rest, err)
	}
	after := rest[dec.InputOffset():]
	fields, err := object(raw)
	if err != nil {
		return Call{}, "", fmt.Errorf("the call must be a JSON object with name and arguments: %w", err)
	}
	var c Call
	for _, f := range fields {
		switch f.key {
		case "name":
			if json.Unmarshal(f.value, &c.Name) != nil || c.Name == "" {
				return Call{}, "", fmt.Errorf(`"name" must be a non-empty string`)
			}
		case "arguments":
			if _, err := object(f.value); err != nil {
				return Call{}, "", fmt.Errorf(`"arguments" must be a JSON object: %w`, err)
			}
			c.Arguments = f.value
		default:
			return Call{}, "", fmt.Errorf(`unknown key %q beside "name" and "arguments"`, f.key)
		}
	}
	if c.Name == "" {
		return Call{}, "", fmt.Errorf(`"name" is missing`)
	}
	if c.Arguments == nil {
		return Call{}, "", fmt.Errorf(`"arguments" is missing`)
	}
	return c, after, nil
}

// jsonTrouble says what is wrong with the JSON of a call: cut off, or malformed and where.
func jsonTrouble(rest string, err error) error {
	trimmed := strings.TrimLeft(rest, " \t\r\n")
	if trimmed == "" {
		return fmt.Errorf("the turn ends after %s", openTag)
	}
	if trimmed[0] != '{' {
		return fmt.Errorf("expected a JSON object after %s, found %s", openTag, excerpt(trimmed))
	}
	var syn *json.SyntaxError
	if errors.As(err, &syn) {
		return fmt.Errorf("the JSON is malformed at byte %d: %v", syn.Offset, syn)
	}
	return fmt.Errorf("the JSON object is never closed")
}

func (h hermes) Render(c Call) (string, error) {
	const op = "toolcall: render hermes"
	name, err := encode(c.Name)
	if err != nil {
		return "", milepost.E(op, milepost.KindInvalid, "name %q: %w", c.Name, err)
	}
	if !json.Valid(c.Arguments) {
		return "", milepost.E(op, milepost.KindInvalid, "arguments of %q are not valid JSON", c.Name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n{\"name\": %s, \"arguments\": %s}\n%s", openTag, name, bytes.TrimSpace(c.Arguments), closeTag)
	return checkBack(h, op, b.String(), c)
}
