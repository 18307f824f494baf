package toolcall

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// field is one member of a JSON object; objects are kept as fields where the order written matters.
type field struct {
	key   string
	value json.RawMessage
}

// object splits a JSON object into its members, in order. A repeated key is an error: which of the two was meant is
// anyone's guess.
func object(raw []byte) ([]field, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("it is %s", kindOf(raw))
	}
	var fields []field
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, _ := tok.(string) // the decoder only gives strings here
		if seen[key] {
			return nil, fmt.Errorf("key %q is there twice", key)
		}
		seen[key] = true
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		fields = append(fields, field{key, v})
	}
	_, err = dec.Token()
	return fields, err
}

// join is the inverse of object.
func join(fields []field) (json.RawMessage, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteString(", ")
		}
		key, err := encode(f.key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteString(": ")
		b.Write(f.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// kindOf names the kind of a JSON value.
func kindOf(raw []byte) string {
	switch raw = bytes.TrimSpace(raw); {
	case len(raw) == 0:
		return "empty"
	case raw[0] == '"':
		return "a string"
	case raw[0] == '[':
		return "an array"
	case raw[0] == '{':
		return "an object"
	case raw[0] == 'n':
		return "null"
	case raw[0] == 't' || raw[0] == 'f':
		return "a boolean"
	}
	return "a number"
}
