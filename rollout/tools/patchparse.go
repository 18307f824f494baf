package tools

import (
	"regexp"
	"strconv"
	"strings"
)

var hunkHeader = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@`)

// parsePatch reads a unified diff, with or without git's extra lines. Renames, copies and binary patches are refused.
func parsePatch(patch string) ([]patchFile, error) {
	p := patchParser{lines: strings.Split(strings.TrimSuffix(patch, "\n"), "\n")}
	var files []patchFile
	executable := false
	for p.at < len(p.lines) {
		line := p.lines[p.at]
		switch {
		case strings.HasPrefix(line, "diff --git "):
			executable = false
		case strings.HasPrefix(line, "new file mode 100755"):
			executable = true
		case strings.HasPrefix(line, "rename "), strings.HasPrefix(line, "copy "):
			return nil, refuse("patch: renames and copies are not supported; delete one file and create the other")
		case strings.HasPrefix(line, "GIT binary patch"), strings.HasPrefix(line, "Binary files "):
			return nil, refuse("patch: binary files are not supported")
		case strings.HasPrefix(line, "--- "):
			f, err := p.file()
			if err != nil {
				return nil, err
			}
			f.executable = executable
			files = append(files, f)
			continue
		case strings.HasPrefix(line, "@@ "):
			return nil, refuse("patch: line %d: a hunk without --- and +++ lines before it", p.at+1)
		}
		p.at++
	}
	if len(files) == 0 {
		return nil, refuse("patch: no file in it; a unified diff with --- and +++ lines is expected")
	}
	return files, nil
}

type patchParser struct {
	lines []string
	at    int
}

// file reads "--- old", "+++ new" and the hunks.
func (p *patchParser) file() (patchFile, error) {
	old := strings.TrimPrefix(p.lines[p.at], "--- ")
	p.at++
	if p.at == len(p.lines) || !strings.HasPrefix(p.lines[p.at], "+++ ") {
		return patchFile{}, refuse("patch: line %d: expected +++ after the --- line", p.at+1)
	}
	f, err := patchNames(old, strings.TrimPrefix(p.lines[p.at], "+++ "))
	if err != nil {
		return f, err
	}
	p.at++
	for p.at < len(p.lines) && strings.HasPrefix(p.lines[p.at], "@@") {
		h, err := p.hunk()
		if err != nil {
			return f, err
		}
		f.hunks = append(f.hunks, h)
	}
	if len(f.hunks) == 0 {
		return f, refuse("patch: %s has no hunk", f.path)
	}
	return f, nil
}

// patchNames makes one path of the two names of a file.
func patchNames(old, new string) (f patchFile, err error) {
	old, new = patchName(old), patchName(new)
	f.created, f.deleted = old == "/dev/null", new == "/dev/null"
	plain := func(name, prefix string) string {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || (!f.created && !strings.HasPrefix(old, "a/")) || (!f.deleted && !strings.HasPrefix(new, "b/")) {
			return name
		}
		return rest
	}
	switch {
	case f.created && f.deleted:
		return f, refuse("patch: both names of a file are /dev/null")
	case f.created:
		f.path = plain(new, "b/")
	case f.deleted:
		f.path = plain(old, "a/")
	default:
		f.path = plain(new, "b/")
		if from := plain(old, "a/"); from != f.path {
			return f, refuse("patch: renames are not supported (%s to %s)", from, f.path)
		}
	}
	return f, nil
}

// patchName takes time stamp and quotes off a name.
func patchName(s string) string {
	s, _, _ = strings.Cut(strings.TrimSuffix(s, "\r"), "\t")
	if strings.HasPrefix(s, `"`) {
		if plain, err := strconv.Unquote(s); err == nil {
			return plain
		}
	}
	return s
}

// hunk reads a header and as many lines as it counts.
func (p *patchParser) hunk() (hunk, error) {
	header := p.lines[p.at]
	m := hunkHeader.FindStringSubmatch(header)
	if m == nil {
		return hunk{}, refuse("patch: line %d: %q is no hunk header; expected @@ -LINE,COUNT +LINE,COUNT @@", p.at+1, header)
	}
	number := func(s string) int {
		if s == "" {
			return 1
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			return -1
		}
		return n
	}
	h := hunk{start: number(m[1])}
	wantOld, wantNew := number(m[2]), number(m[4])
	first := p.at + 1
	last := byte(' ')
	for p.at++; p.at < len(p.lines); p.at++ {
		line := p.lines[p.at]
		if strings.HasPrefix(line, `\`) {
			h.oldNoEOL = h.oldNoEOL || last != '+'
			h.newNoEOL = h.newNoEOL || last != '-'
			continue
		}
		if len(h.old) >= wantOld && len(h.new) >= wantNew {
			break
		}
		if line == "" {
			line = " " // editors strip the blank of an empty context line
		}
		last = line[0]
		switch last {
		case ' ':
			h.old, h.new = append(h.old, line[1:]), append(h.new, line[1:])
		case '-':
			h.old = append(h.old, line[1:])
		case '+':
			h.new = append(h.new, line[1:])
		default:
			return h, refuse("patch: line %d: a line of a hunk begins with a blank, - or +, not %q", p.at+1, line[:1])
		}
	}
	if len(h.old) != wantOld || len(h.new) != wantNew {
		return h, refuse("patch: line %d: the header counts %d old and %d new lines, the hunk has %d and %d", first, wantOld, wantNew, len(h.old), len(h.new))
	}
	return h, nil
}
