package toolcall

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
)

// qwen3Coder is the tagged convention of Qwen3-Coder:
//
//	<tool_call>
//	<function=read_file>
//	<parameter=path>
//	a.py
//	</parameter>
//	</function>
//	</tool_call>
//
// One newline after the opening and one before the closing tag of a parameter belong to the markup, all others to the
// value. A value ends at the first </parameter> that is followed, over white space, by <parameter= or </function>, so
// a lone </parameter> inside a value is kept. A parameter that the schema gives a type other than string is read as
// JSON; where it is no JSON it stays a string, and the schema check says what was expected.
type qwen3Coder struct {
	types map[string]map[string][]string // tool -> parameter -> JSON schema types
}

const (
	functionOpen   = "<function="
	functionClose  = "</function>"
	parameterOpen  = "<parameter="
	parameterClose = "</parameter>"
)

func newQwen3Coder(specs []Spec) (*qwen3Coder, error) {
	q := &qwen3Coder{types: map[string]map[string][]string{}}
	for _, s := range specs {
		var schema struct {
			Properties map[string]struct {
				Type json.RawMessage `json:"type"`
			} `json:"properties"`
		}
		if err := json.Unmarshal(s.Parameters, &schema); err != nil {
			return nil, milepost.E("toolcall: new", milepost.KindInvalid, "schema of tool %q: %w", s.Name, err)
		}
		params := map[string][]string{}
		for name, p := range schema.Properties {
			params[name] = schemaTypes(p.Type)
		}
		q.types[s.Name] = params
	}
	return q, nil
}

// schemaTypes reads the "type" of a property, one name or a list; nil where it states none.
func schemaTypes(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil {
		return many
	}
	return nil
}

func (*qwen3Coder) Name() string { return Qwen3Coder }

func (*qwen3Coder) Shape() string {
	return openTag + "\n<function=TOOL>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n" + closeTag
}

func (q *qwen3Coder) Parse(text string) ([]Call, error) {
	return blocks("toolcall: parse qwen3_coder", text, q.body)
}

func (q *qwen3Coder) body(rest string) (Call, string, error) {
	rest = trimSpace(rest)
	if !strings.HasPrefix(rest, functionOpen) {
		return Call{}, "", fmt.Errorf("expected %sTOOL> after %s, found %s", functionOpen, openTag, excerpt(rest))
	}
	name, rest, err := tagName(rest, functionOpen)
	if err != nil {
		return Call{}, "", err
	}
	var fields []field
	seen := map[string]bool{}
	for {
		rest = trimSpace(rest)
		if strings.HasPrefix(rest, functionClose) {
			break
		}
		if !strings.HasPrefix(rest, parameterOpen) {
			return Call{}, "", fmt.Errorf("expected %sKEY> or %s in %s%s>, found %s", parameterOpen, functionClose, functionOpen, name, excerpt(rest))
		}
		var key, value string
		if key, rest, err = tagName(rest, parameterOpen); err != nil {
			return Call{}, "", err
		}
		if seen[key] {
			return Call{}, "", fmt.Errorf("parameter %q is there twice", key)
		}
		seen[key] = true
		end := valueEnd(rest)
		if end < 0 {
			return Call{}, "", fmt.Errorf("%s%s> is not closed by %s and then %s or the next parameter", parameterOpen, key, parameterClose, functionClose)
		}
		value, rest = rest[:end], rest[end+len(parameterClose):]
		value = strings.TrimPrefix(value, "\n")
		value = strings.TrimSuffix(value, "\n")
		typed, err := q.typed(name, key, value)
		if err != nil {
			return Call{}, "", err
		}
		fields = append(fields, field{key, typed})
	}
	args, err := join(fields)
	return Call{Name: name, Arguments: args}, rest[len(functionClose):], err
}

// valueEnd returns where the </parameter> that ends a value begins, -1 where there is none.
func valueEnd(s string) int {
	for from := 0; ; {
		i := strings.Index(s[from:], parameterClose)
		if i < 0 {
			return -1
		}
		i += from
		from = i + len(parameterClose)
		if next := trimSpace(s[from:]); strings.HasPrefix(next, parameterOpen) || strings.HasPrefix(next, functionClose) {
			return i
		}
	}
}

// tagName reads NAME of "<function=NAME>" or "<parameter=NAME>" at the start of s and returns the rest after ">".
func tagName(s, open string) (name, rest string, err error) {
	end := strings.IndexAny(s, ">\n")
	if end < 0 || s[end] == '\n' {
		return "", "", fmt.Errorf("%s is not closed by > on its line", open)
	}
	name = s[len(open):end]
	if name == "" || strings.TrimSpace(name) != name {
		return "", "", fmt.Errorf("%s%s> does not name anything", open, name)
	}
	return name, s[end+1:], nil
}

// typed turns the text of a value into JSON by the types its schema allows.
func (q *qwen3Coder) typed(tool, key, value string) (json.RawMessage, error) {
	for _, t := range q.types[tool][key] {
		if t == "string" {
			continue
		}
		raw := strings.TrimSpace(value)
		if json.Valid([]byte(raw)) && fits(raw, t) {
			return json.RawMessage(raw), nil
		}
	}
	return encode(value)
}

// fits reports whether a JSON text is of a JSON schema type.
func fits(raw, schemaType string) bool {
	kind := kindOf([]byte(raw))
	switch schemaType {
	case "integer", "number":
		return kind == "a number"
	case "boolean":
		return kind == "a boolean"
	case "array":
		return kind == "an array"
	case "object":
		return kind == "an object"
	case "null":
		return kind == "null"
	}
	return false
}

func (q *qwen3Coder) Render(c Call) (string, error) {
	const op = "toolcall: render qwen3_coder"
	fields, err := object(c.Arguments)
	if err != nil {
		return "", milepost.E(op, milepost.KindInvalid, "arguments of %q: %w", c.Name, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s%s>\n", openTag, functionOpen, c.Name)
	for _, f := range fields {
		value := string(f.value)
		var s string
		if json.Unmarshal(f.value, &s) == nil && kindOf(f.value) == "a string" {
			value = s
		}
		fmt.Fprintf(&b, "%s%s>\n%s\n%s\n", parameterOpen, f.key, value, parameterClose)
	}
	fmt.Fprintf(&b, "%s\n%s", functionClose, closeTag)
	return checkBack(q, op, b.String(), c)
}

func trimSpace(s string) string { return strings.TrimLeft(s, " \t\r\n") }
