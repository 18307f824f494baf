package tools

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// document is a text file as the tools show and edit it: lines end in "\n". Where every line of the file ends in
// "\r\n" the document says so and writes it back; a file of mixed endings keeps its "\r" as plain characters.
type document struct {
	body string
	crlf bool
}

// isBinary reports whether data is no text: it has a NUL among its first 8000 bytes, as git decides it.
func isBinary(data []byte) bool { return bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 }

func parseDocument(data []byte) document {
	body := string(data)
	if n := strings.Count(body, "\r\n"); n > 0 && n == strings.Count(body, "\n") {
		return document{body: strings.ReplaceAll(body, "\r\n", "\n"), crlf: true}
	}
	return document{body: body}
}

// in turns text of a call into the document's lines.
func (d document) in(text string) string {
	if d.crlf {
		return strings.ReplaceAll(text, "\r\n", "\n")
	}
	return text
}

func (d document) bytes() []byte {
	if d.crlf {
		return []byte(strings.ReplaceAll(d.body, "\n", "\r\n"))
	}
	return []byte(d.body)
}

// lines splits a body into lines without their ends; a last line without end counts, an empty body has none.
func lines(body string) []string {
	if body == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(body, "\n"), "\n")
}

// cut bounds text to limit bytes by replacing its middle with a mark that says how much is gone.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const room = 64 // of the mark
	head := (limit - room) / 2
	tail := len(text) - (limit - room - head)
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[... %d bytes cut ...]\n%s", text[:head], tail-head, text[tail:])
}

// cutLine bounds one line of a listing.
func cutLine(line string, limit int) string {
	if len(line) <= limit {
		return line
	}
	for limit > 0 && !utf8.RuneStart(line[limit]) {
		limit--
	}
	return line[:limit] + "..."
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
