package toolcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/milepost-rl/milepost"
)

// The names of the formats, as a configuration writes them.
const (
	Hermes     = "hermes"
	Qwen3Coder = "qwen3_coder"
	BashBlock  = "bash_block"
)

const (
	openTag  = "<tool_call>"
	closeTag = "</tool_call>"
)

// Format reads and writes the tool calls of one convention. A Format is immutable and safe for concurrent use.
type Format interface {
	// Name is the name a configuration chooses the format by.
	Name() string

	// Parse finds the calls in one sampled turn, in order. Text around the calls is ignored, and so is a thought: where
	// the turn begins with <think>, everything up to the first </think>. A turn without a call, and any half or
	// malformed markup, is an error of KindInvalid that says what is wrong in words for the policy ([Why] extracts
	// them); calls are nil then.
	Parse(text string) ([]Call, error)

	// Render writes one call so that Parse gives it back with the same name and arguments (equal as JSON). It fails
	// with KindInvalid where the format cannot express the call. The call's ID is not written.
	Render(c Call) (string, error)

	// Shape shows in one or a few lines how a call looks, for the answer to a turn that held none.
	Shape() string
}

// New returns the format of the given name. Specs give the types of parameters to formats that write values untyped.
// KindInvalid for an unknown name or a spec whose Parameters are not a JSON object.
func New(name string, specs []Spec) (Format, error) {
	switch name {
	case Hermes:
		return hermes{}, nil
	case Qwen3Coder:
		return newQwen3Coder(specs)
	case BashBlock:
		return bashBlock{}, nil
	}
	return nil, milepost.E("toolcall: new", milepost.KindInvalid, "format %q is not one of %s", name, strings.Join(Names(), ", "))
}

// Names lists the formats, sorted.
func Names() []string {
	names := []string{Hermes, Qwen3Coder, BashBlock}
	sort.Strings(names)
	return names
}

// Why returns what a Parse error says to the policy, without the operation in front.
func Why(err error) string {
	var e *milepost.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

// blocks walks over the <tool_call> blocks of a turn. For each it hands body the text right after the opening tag;
// body returns the call and the rest of the text, which must go on with </tool_call>.
func blocks(op, text string, body func(rest string) (Call, string, error)) ([]Call, error) {
	bad := func(format string, args ...any) ([]Call, error) {
		return nil, milepost.E(op, milepost.KindInvalid, format, args...)
	}
	rest, err := unthought(text)
	if err != nil {
		return bad("%w", err)
	}
	var calls []Call
	for {
		opened, closed := strings.Index(rest, openTag), strings.Index(rest, closeTag)
		if closed >= 0 && (opened < 0 || closed < opened) {
			return bad("%s without %s before it", closeTag, openTag)
		}
		if opened < 0 {
			break
		}
		call, after, err := body(rest[opened+len(openTag):])
		if err != nil {
			return bad("call %d: %w", len(calls)+1, err)
		}
		after = strings.TrimLeft(after, " \t\r\n")
		if !strings.HasPrefix(after, closeTag) {
			return bad("call %d: expected %s after the call, found %s", len(calls)+1, closeTag, excerpt(after))
		}
		calls = append(calls, call)
		rest = after[len(closeTag):]
	}
	if len(calls) == 0 {
		return bad("no %s found", openTag)
	}
	return calls, nil
}

// unthought is the text behind the thought that a turn may begin with.
func unthought(text string) (string, error) {
	lead := strings.TrimLeft(text, " \t\r\n")
	if !strings.HasPrefix(lead, "<think>") {
		return text, nil
	}
	_, after, closed := strings.Cut(lead, "</think>")
	if !closed {
		return "", errors.New("<think> is never closed by </think>")
	}
	return after, nil
}

// excerpt quotes the start of s for an error message.
func excerpt(s string) string {
	if s == "" {
		return "the end of the turn"
	}
	r := []rune(s)
	if len(r) > 24 {
		return fmt.Sprintf("%q...", string(r[:24]))
	}
	return fmt.Sprintf("%q", s)
}

// encode is json.Marshal without HTML escapes: policies write < and > plainly.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// sameJSON reports whether two JSON texts hold the same value; numbers are compared as written.
func sameJSON(a, b []byte) bool {
	norm := func(x []byte) (string, bool) {
		dec := json.NewDecoder(bytes.NewReader(x))
		dec.UseNumber()
		var v any
		if dec.Decode(&v) != nil {
			return "", false
		}
		out, err := encode(v)
		return string(out), err == nil
	}
	x, ok := norm(a)
	if !ok {
		return false
	}
	y, ok := norm(b)
	return ok && x == y
}

// checkBack returns out after proving that parsing it gives exactly c back.
func checkBack(f Format, op, out string, c Call) (string, error) {
	calls, err := f.Parse(out)
	if err == nil && len(calls) == 1 && calls[0].Name == c.Name && sameJSON(calls[0].Arguments, c.Arguments) {
		return out, nil
	}
	return "", milepost.E(op, milepost.KindInvalid, "format %s cannot express this call to %q so that it reads back the same", f.Name(), c.Name)
}
