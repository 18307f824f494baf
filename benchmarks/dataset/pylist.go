package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ParseList reads a JSON value as a list of strings. Data sets write them as a list, as a string with a JSON list in it,
// or as a string with a Python literal in it: ['a', "b"]. "" is an empty list. The elements keep their order and may
// repeat; an element that is empty or no string is an error.
func ParseList(v json.RawMessage) ([]string, error) {
	switch kindOf(v) {
	case "a list":
		return jsonList(v)
	case "a string":
		return parseListText(unquote(v))
	}
	return nil, fmt.Errorf("%s where a list of strings is wanted, or a string with one in it", kindOf(v))
}

// parseListText reads the text forms.
func parseListText(s string) ([]string, error) {
	t := strings.TrimSpace(s)
	if t == "" {
		return nil, nil
	}
	if t[0] == '[' && json.Valid([]byte(t)) {
		return jsonList(json.RawMessage(t))
	}
	list, err := ParsePythonList(t)
	if err != nil {
		return nil, fmt.Errorf("unreadable list %s: %w; a JSON list or a Python list of strings is wanted", short(t), err)
	}
	for i, e := range list {
		if e == "" {
			return nil, fmt.Errorf("element %d is empty", i+1)
		}
	}
	return list, nil
}

func jsonList(v json.RawMessage) ([]string, error) {
	var raw []json.RawMessage
	if err := json.Unmarshal(v, &raw); err != nil {
		return nil, fmt.Errorf("unreadable list: %w", err)
	}
	out := make([]string, 0, len(raw))
	for i, e := range raw {
		if kindOf(e) != "a string" {
			return nil, fmt.Errorf("element %d is %s; strings are wanted", i+1, kindOf(e))
		}
		s := unquote(e)
		if s == "" {
			return nil, fmt.Errorf("element %d is empty", i+1)
		}
		out = append(out, s)
	}
	return out, nil
}

// ParsePythonList reads the literal of a Python list or tuple of strings, as repr writes it: both quotes, triple quotes,
// the prefixes r and u, and every escape but \N{...}. Two strings without a comma between them are an error though Python
// joins them, since in a data file it means that a comma was lost (numpy prints arrays so).
// Source: The Python Language Reference, 2.5 String and Bytes literals.
func ParsePythonList(s string) ([]string, error) {
	p := &pyParser{s: s}
	p.space()
	closing := byte(']')
	switch p.peek() {
	case '[':
	case '(':
		closing = ')'
	default:
		return nil, p.errorf("no opening bracket")
	}
	p.i++
	out := []string{}
	comma := false
	for {
		p.space()
		if p.peek() == closing && p.i < len(p.s) {
			p.i++
			break
		}
		if len(out) > 0 && !comma {
			return nil, p.errorf("no comma after element %d", len(out))
		}
		e, err := p.str()
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", len(out)+1, err)
		}
		out = append(out, e)
		p.space()
		if comma = p.peek() == ','; comma {
			p.i++
		}
	}
	p.space()
	if p.i < len(p.s) {
		return nil, p.errorf("something follows the list")
	}
	if closing == ')' && len(out) == 1 && !comma {
		return nil, errors.New("a string in brackets is no tuple; a comma is wanted")
	}
	return out, nil
}

// pyParser is a place in a literal.
type pyParser struct {
	s string
	i int
}

// peek is the byte at the place, 0 at the end.
func (p *pyParser) peek() byte {
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *pyParser) space() {
	for p.i < len(p.s) && strings.IndexByte(" \t\n\r\f", p.s[p.i]) >= 0 {
		p.i++
	}
}

func (p *pyParser) errorf(format string, args ...any) error {
	return fmt.Errorf(format+" at byte %d", append(args, p.i)...)
}

// str reads one string literal.
func (p *pyParser) str() (string, error) {
	raw := false
	switch p.peek() {
	case 'r', 'R':
		raw = true
		p.i++
	case 'u', 'U':
		p.i++
	}
	quote := p.peek()
	if quote != '\'' && quote != '"' {
		if p.i >= len(p.s) {
			return "", p.errorf("the list ends too early")
		}
		return "", p.errorf("no string")
	}
	end := string(quote)
	if triple := strings.Repeat(end, 3); strings.HasPrefix(p.s[p.i:], triple) {
		end = triple
	}
	p.i += len(end)
	var out strings.Builder
	for {
		switch rest := p.s[p.i:]; {
		case rest == "":
			return "", p.errorf("the string does not end")
		case strings.HasPrefix(rest, end):
			p.i += len(end)
			return out.String(), nil
		case rest[0] == '\n' && len(end) == 1:
			return "", p.errorf("the string does not end on its line")
		case rest[0] == '\\' && raw:
			if len(rest) < 2 {
				return "", p.errorf("the string does not end")
			}
			out.WriteString(rest[:2])
			p.i += 2
		case rest[0] == '\\':
			if err := p.escape(&out); err != nil {
				return "", err
			}
		default:
			out.WriteByte(rest[0])
			p.i++
		}
	}
}

// simpleEscapes are the escapes of one character.
var simpleEscapes = map[byte]string{'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n",
	'r': "\r", 't': "\t", 'v': "\v"}

// escape reads the escape at the place.
func (p *pyParser) escape(out *strings.Builder) error {
	if p.i+1 >= len(p.s) {
		return p.errorf("the string does not end")
	}
	c := p.s[p.i+1]
	if text, ok := simpleEscapes[c]; ok {
		out.WriteString(text)
		p.i += 2
		return nil
	}
	digits, base := 0, 16
	switch {
	case c == 'x':
		digits = 2
	case c == 'u':
		digits = 4
	case c == 'U':
		digits = 8
	case c >= '0' && c <= '7':
		return p.octal(out)
	case c == 'N':
		return p.errorf(`\N{...} is not read`)
	default: // Python keeps the backslash of an unknown escape
		out.WriteByte('\\')
		p.i++
		return nil
	}
	start := p.i + 2
	if start+digits > len(p.s) {
		return p.errorf(`\%c wants %d hex digits`, c, digits)
	}
	n, err := strconv.ParseUint(p.s[start:start+digits], base, 32)
	if err != nil {
		return p.errorf(`\%c wants %d hex digits`, c, digits)
	}
	if n > utf8.MaxRune || n >= 0xd800 && n < 0xe000 {
		return p.errorf(`\%c%s is no character`, c, p.s[start:start+digits])
	}
	out.WriteRune(rune(n))
	p.i = start + digits
	return nil
}

// octal reads \o, \oo or \ooo.
func (p *pyParser) octal(out *strings.Builder) error {
	n, i := 0, p.i+1
	for ; i < len(p.s) && i < p.i+4 && p.s[i] >= '0' && p.s[i] <= '7'; i++ {
		n = n*8 + int(p.s[i]-'0')
	}
	out.WriteRune(rune(n))
	p.i = i
	return nil
}
