package logs

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// parseP5JS reads mocha's numbered failures, "  1) suite\n       test:", out of a log from which JSON and XML that the page
// printed are removed. Passes are not printed.
func parseP5JS(log string, _ Task, r *Results) error {
	log, err := withoutXML(withoutJSON(withoutEscapes(log)))
	if err != nil {
		return err
	}
	for pos := 0; pos < len(log); {
		title, next := numberedTitle(log, pos)
		if title >= 0 && deepening(log[title:next]) {
			var names []string
			for line := range lines(log[title:next]) {
				names = append(names, strip(line))
			}
			r.Set(strings.Join(names, ":"), Failed)
		}
		if title >= 0 {
			next++ // the colon
		}
		pos = next
		for pos < len(log) && pos > 0 && log[pos-1] != '\n' {
			pos++
		}
	}
	return nil
}

// maxTitle is how many characters a title may have.
const maxTitle = 1000

// numberedTitle looks at the line at pos, white space and empty lines skipped, for "<digits>)" and a colon no more than
// maxTitle characters behind. It returns the range of what is between, or -1 and where to go on.
func numberedTitle(log string, pos int) (start, end int) {
	at := len(log) - len(lstrip(log[pos:]))
	i := at
	for i < len(log) {
		c, size := utf8.DecodeRuneInString(log[i:])
		if !isDigit(c) {
			break
		}
		i += size
	}
	if i == at || i >= len(log) || log[i] != ')' {
		return -1, max(i, pos+1)
	}
	start = i + 1
	j := start
	for n := 0; j < len(log) && n <= maxTitle; n++ {
		if log[j] == ':' {
			return start, j
		}
		_, size := utf8.DecodeRuneInString(log[j:])
		j += size
	}
	return -1, start
}

// deepening reports whether each line of a title is indented more than the one before.
func deepening(title string) bool {
	last := 0
	for line := range lines(title) {
		in := indent(line)
		if in <= last {
			return false
		}
		last = in
	}
	return true
}

// withoutJSON drops blocks from a line that ends with { or [ to a line that is } or ], and lines that are one object or
// list. A block that is opened twice is closed once.
func withoutJSON(log string) string {
	var out strings.Builder
	out.Grow(len(log))
	object, list, first := false, false, true
	for line := range lines(log) {
		bare := rstrip(line)
		switch {
		case strings.HasSuffix(bare, "{"):
			object = true
			continue
		case strings.HasSuffix(bare, "["):
			list = true
			continue
		case bare == "}" && object:
			object = false
			continue
		case bare == "]" && list:
			list = false
			continue
		case object || list,
			strings.HasPrefix(bare, "{") && strings.HasSuffix(bare, "}"),
			strings.HasPrefix(bare, "[") && strings.HasSuffix(bare, "]"):
			continue
		}
		if !first {
			out.WriteByte('\n')
		}
		first = false
		out.WriteString(line)
	}
	return out.String()
}

// maxRestarts bounds how often the removal of XML may start over.
const maxRestarts = 1000

// withoutXML removes, again and again from the left, an element "<a>...</a>" from its first opening tag to the next
// closing one; opening tags inside it are put back. The removal is one pass, but where it brings two halves of a tag together,
// and then starts over.
func withoutXML(log string) (string, error) {
	if start, _ := openingTag(log); start < 0 {
		return log, nil
	}
	for range maxRestarts {
		out, again := removeXML(log)
		if !again {
			return out, nil
		}
		log = out
	}
	return "", errors.New("removing XML from the log makes new XML too often")
}

func removeXML(rest string) (string, bool) {
	var out strings.Builder
	closed := map[string]bool{} // tags of which no closing one follows
	for {
		start, tag := openingTag(rest)
		if start < 0 {
			out.WriteString(rest)
			return out.String(), false
		}
		open, closing := "<"+tag+">", "</"+tag+">"
		out.WriteString(rest[:start])
		rest = rest[start+len(open):]
		n := 1
		for n > 0 && !closed[tag] {
			at := strings.Index(rest, closing)
			if at < 0 {
				closed[tag] = true
				break
			}
			n += strings.Count(rest[:at], open) - 1
			rest = rest[at+len(closing):]
		}
		if n > 0 {
			out.WriteString(strings.Repeat(open, n))
		} else if before := out.String(); joins(before, rest) {
			return before + rest, true
		}
	}
}

// openingTag finds the first "<word>".
func openingTag(s string) (at int, tag string) {
	for i := 0; ; {
		j := strings.IndexByte(s[i:], '<')
		if j < 0 {
			return -1, ""
		}
		i += j + 1
		word := s[i : len(s)-len(strings.TrimLeftFunc(s[i:], isWord))]
		if word != "" && strings.HasPrefix(s[i+len(word):], ">") {
			return i - 1, word
		}
	}
}

// joins reports whether a tag stands across the border of two texts.
func joins(a, b string) bool {
	head := strings.TrimRightFunc(a, isWord)
	tail := strings.TrimLeftFunc(b, isWord)
	head = strings.TrimSuffix(head, "/")
	if head == a && strings.HasPrefix(b, "/") {
		tail = strings.TrimLeftFunc(b[1:], isWord)
	}
	return strings.HasSuffix(head, "<") && strings.HasPrefix(tail, ">")
}
