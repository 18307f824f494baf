// Package toolcall turns the text a policy samples into a tool call and back. One file per format, each with Parse
// (text to calls, with an error that says precisely what is wrong) and Render (the exact inverse, used by scripted
// experts and by worked examples in observations). A new format is a new file that implements [Format] and an entry
// in the table of [New].
//
// The package knows no tool: it is told their names, schemas and parameter types through [Spec].
package toolcall

import "encoding/json"

// Call is one tool call.
type Call struct {
	ID        string          // the endpoint's id of the call (chat endpoints); "" where calls come from sampled text
	Name      string          // the tool's name as written, known or not
	Arguments json.RawMessage // a JSON object, keys in the order written; not yet held against the tool's schema
}

// Spec describes one tool to a policy, as a chat template or a chat endpoint wants it.
type Spec struct {
	Name        string
	Description string          // may be "" where the scaffold keeps the prompt short
	Parameters  json.RawMessage // JSON schema of the arguments, an object schema
}
