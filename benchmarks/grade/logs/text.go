package logs

import (
	"io"
	"io/fs"
	"iter"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/milepost-rl/milepost"
)

// ReadText reads a log as the referee does: invalid UTF-8 becomes U+FFFD, one for each maximal part of a character
// (Unicode 15, section 3.9), and \r\n and \r become \n. Memory is that of the text, which may be up to three times the
// log's where it is not UTF-8. Kinds: limit where the log has more than max bytes, unavailable where r fails.
func ReadText(r io.Reader, max int64) (string, error) {
	const op = "logs: read"
	var t text
	if f, ok := r.(interface{ Stat() (fs.FileInfo, error) }); ok { // a file: its size spares growing step by step
		if info, err := f.Stat(); err == nil && info.Size() <= max {
			t.out.Grow(int(info.Size()))
		}
	}
	var n int64
	buf := make([]byte, 0, 64<<10)
	for {
		k, err := r.Read(buf[len(buf):cap(buf)])
		if n += int64(k); n > max {
			return "", milepost.E(op, milepost.KindLimit, "the log has more than %d bytes", max)
		}
		buf = buf[:len(buf)+k]
		rest := t.write(buf, err == io.EOF)
		buf = buf[:copy(buf, rest)]
		if err == io.EOF {
			return t.out.String(), nil
		}
		if err != nil {
			return "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
}

// Text is [ReadText] of bytes in memory.
func Text(log []byte) string {
	var t text
	t.out.Grow(len(log))
	t.write(log, true)
	return t.out.String()
}

// text collects decoded text; cr says that the last byte was \r, already written as \n.
type text struct {
	out strings.Builder
	cr  bool
}

// write decodes b and returns the tail that cannot be decoded yet, never at the end.
func (t *text) write(b []byte, end bool) (rest []byte) {
	for len(b) > 0 {
		i := 0
		for i < len(b) && b[i] < utf8.RuneSelf && b[i] != '\r' && !(i == 0 && t.cr) {
			i++
		}
		if i > 0 {
			t.out.Write(b[:i])
			b = b[i:]
			continue
		}
		if b[0] < utf8.RuneSelf {
			if !(t.cr && b[0] == '\n') {
				c := b[0]
				if c == '\r' {
					c = '\n'
				}
				t.out.WriteByte(c)
			}
			t.cr = b[0] == '\r'
			b = b[1:]
			continue
		}
		t.cr = false
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			if size = illFormed(b); size == len(b) && !end && size < utf8.UTFMax && couldGrow(b) {
				return b
			}
			t.out.WriteRune(utf8.RuneError)
		} else {
			t.out.Write(b[:size])
		}
		b = b[size:]
	}
	return nil
}

// illFormed is the length of the maximal part of a character at the start of b, which is not a whole one; at least 1.
func illFormed(b []byte) int {
	n, lo, hi := 0, byte(0x80), byte(0xBF)
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		n = 2
	case c >= 0xE0 && c <= 0xEF:
		n = 3
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		n = 4
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1
	}
	i := 1
	for i < n && i < len(b) && b[i] >= lo && b[i] <= hi {
		i, lo, hi = i+1, 0x80, 0xBF
	}
	return i
}

// couldGrow reports whether b, all of it a part of a character, may become a whole one with more bytes.
func couldGrow(b []byte) bool { return b[0] >= 0xC2 && b[0] <= 0xF4 }

// isSpace is Python's str.isspace for one character: Unicode's white space and the four ASCII separators.
func isSpace(r rune) bool { return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r) }

// isDigit is Python's \d, isWord its \w.
func isDigit(r rune) bool {
	return r < utf8.RuneSelf && r >= '0' && r <= '9' || unicode.Is(unicode.Nd, r)
}
func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }

func strip(s string) string      { return strings.TrimFunc(s, isSpace) }
func lstrip(s string) string     { return strings.TrimLeftFunc(s, isSpace) }
func rstrip(s string) string     { return strings.TrimRightFunc(s, isSpace) }
func fields(s string) []string   { return strings.FieldsFunc(s, isSpace) }
func indent(line string) int     { return utf8.RuneCountInString(line[:len(line)-len(lstrip(line))]) }
func collapse(s string) string   { return strings.Join(fields(s), " ") } // white space to one space, none at the ends
func after(s, sep string) string { _, t, _ := strings.Cut(s, sep); return t }

// lines yields what is between newlines, the empty text behind the last one too.
func lines(s string) iter.Seq[string] { return strings.SplitSeq(s, "\n") }

// beforeLast is s up to the last sep, or all of s.
func beforeLast(s, sep string) string {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i]
	}
	return s
}

// afterLast is s behind the last sep, or all of s.
func afterLast(s, sep string) string {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[i+len(sep):]
	}
	return s
}

// escapes is a terminal's control sequence.
var escapes = rx(`\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])`)

func withoutEscapes(s string) string {
	if strings.IndexByte(s, 0x1b) < 0 {
		return s
	}
	return escapes().ReplaceAllLiteralString(s, "")
}

// Members of a regular expression's class with Python's meaning for text.
const (
	classSpace = `\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}`
	classDigit = `\p{Nd}`
	classWord  = `\p{L}\p{N}_`
)

// rx compiles, at its first use, an expression in which \s \d \w have Python's meaning for text and \S \D \W the
// opposite; Go's own mean ASCII. Inside brackets only \s \d \w are allowed.
func rx(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(translate(pattern)) })
}

func translate(pattern string) string {
	classes := map[byte]string{'s': classSpace, 'd': classDigit, 'w': classWord}
	var out strings.Builder
	inside := false
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		if c == '\\' && i+1 < len(pattern) {
			i++
			members, positive := classes[pattern[i]]
			negated, negative := classes[pattern[i]|0x20]
			switch {
			case positive && inside:
				out.WriteString(members)
			case positive:
				out.WriteString("[" + members + "]")
			case negative && inside:
				panic("logs: a negated class inside brackets: " + pattern)
			case negative:
				out.WriteString("[^" + negated + "]")
			default:
				out.WriteString(pattern[i-1 : i+1])
			}
			continue
		}
		switch c {
		case '[':
			inside = true
		case ']':
			inside = false
		}
		out.WriteByte(c)
	}
	return out.String()
}
