package tools

import "strings"

// word is one word of a shell command. Sure is false where its value depends on more than the text: a variable, a
// substitution, a glob, a tilde.
type word struct {
	text string
	sure bool
}

// simple is one simple command of a shell line, with the operators around it.
type simple struct {
	words      []word
	redirected bool   // its standard output goes to a file or another descriptor
	before     string // operator in front: "" at the start, ";", "&&", "||", "|" or "&"
	after      string // operator behind, "" at the end
}

// parseShell splits a command line into simple commands. ok is false where the line uses more of the shell than this
// reader knows (grouping, loops, here-documents, unbalanced quotes): nothing certain can be said then.
func parseShell(line string) (cmds []simple, ok bool) {
	l := shellLexer{in: line}
	cur := simple{}
	end := func(op string) bool {
		if len(cur.words) == 0 && !cur.redirected {
			return op == "" || op == ";" // blank lines; "a ;" at the end
		}
		cur.after = op
		cmds = append(cmds, cur)
		cur = simple{before: op}
		return true
	}
	for {
		w, op, good := l.next()
		if !good {
			return cmds, false
		}
		switch op {
		case "word":
			cur.words = append(cur.words, w)
		case "<":
			if _, op, good = l.next(); !good || op != "word" {
				return cmds, false
			}
		case ">", "2>":
			if _, next, good := l.next(); !good || next != "word" {
				return cmds, false
			}
			cur.redirected = cur.redirected || op == ">"
		case "2>&1":
		case "end":
			return cmds, end("")
		default:
			if !end(op) {
				return cmds, false
			}
		}
	}
}

// shellLexer cuts a line into words and operators.
type shellLexer struct {
	in string
	at int
}

// next returns a word (op "word"), an operator, or op "end". ok is false for what the lexer does not know.
func (l *shellLexer) next() (w word, op string, ok bool) {
	for l.at < len(l.in) && (l.in[l.at] == ' ' || l.in[l.at] == '\t' || strings.HasPrefix(l.in[l.at:], "\\\n")) {
		if l.in[l.at] == '\\' {
			l.at++
		}
		l.at++
	}
	rest := l.in[l.at:]
	if rest == "" {
		return w, "end", true
	}
	if rest[0] == '#' {
		if i := strings.IndexByte(rest, '\n'); i >= 0 {
			l.at += i
			return l.next()
		}
		l.at = len(l.in)
		return w, "end", true
	}
	for _, o := range shellOperators {
		if strings.HasPrefix(rest, o.text) {
			l.at += len(o.text)
			return w, o.means, o.means != ""
		}
	}
	return l.word()
}

// shellOperators in the order in which they are tried; one that means "" is not understood.
var shellOperators = []struct{ text, means string }{
	{"2>&1", "2>&1"}, {"1>&2", ""}, {"2>>", "2>"}, {"2>", "2>"}, {"1>>", ">"}, {"1>", ">"}, {"&>>", ">"}, {"&>", ">"}, {">&", ""},
	{">>", ">"}, {">|", ">"}, {">", ">"}, {"<<", ""}, {"<(", ""}, {"<", "<"},
	{"&&", "&&"}, {"||", "||"}, {"|&", "|"}, {"|", "|"}, {"&", "&"}, {";;", ""}, {";", ";"}, {"\n", ";"}, {"(", ""}, {")", ""},
}

// word reads one word with its quotes.
func (l *shellLexer) word() (w word, op string, ok bool) {
	w.sure = true
	var b strings.Builder
	for l.at < len(l.in) {
		c := l.in[l.at]
		switch {
		case strings.IndexByte(" \t\n;&|<>()", c) >= 0:
			w.text = b.String()
			return w, "word", true
		case c == '\'':
			end := strings.IndexByte(l.in[l.at+1:], '\'')
			if end < 0 {
				return w, "", false
			}
			b.WriteString(l.in[l.at+1 : l.at+1+end])
			l.at += end + 2
			continue
		case c == '"':
			if !l.quoted(&b, &w) {
				return w, "", false
			}
			continue
		case c == '\\' && l.at+1 < len(l.in):
			l.at++
			c = l.in[l.at]
		case c == '`' || (c == '$' && strings.HasPrefix(l.in[l.at:], "$(")):
			return w, "", false
		case strings.IndexByte("$*?[]{}~!", c) >= 0:
			w.sure = false
		}
		b.WriteByte(c)
		l.at++
	}
	w.text = b.String()
	return w, "word", true
}

// quoted reads a part in double quotes.
func (l *shellLexer) quoted(b *strings.Builder, w *word) bool {
	for l.at++; l.at < len(l.in); l.at++ {
		c := l.in[l.at]
		switch {
		case c == '"':
			l.at++
			return true
		case c == '`' || strings.HasPrefix(l.in[l.at:], "$("):
			return false
		case c == '$':
			w.sure = false
		case c == '\\' && l.at+1 < len(l.in) && strings.IndexByte("\"\\$`\n", l.in[l.at+1]) >= 0:
			l.at++
			c = l.in[l.at]
		}
		b.WriteByte(c)
	}
	return false
}
