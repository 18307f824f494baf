package benchmarks

import (
	"fmt"
	"strings"
)

// Edit is one place that a patch changes, as a replacement of whole lines.
type Edit struct {
	Path string
	Line int    // first line of Old in the file before, from 1
	Old  string // lines as they are before, each with its newline; never empty
	New  string // what takes their place
}

// Edits reads a patch made by [Diff] as replacements: one for each run of changed lines. Where a run only adds lines,
// the line after them (or before, at the end of a hunk) is in both Old and New, so that Old has something to match.
func Edits(patch string) ([]Edit, error) {
	var out []Edit
	path := ""
	lines := splitLines(patch)
	for i := 0; i < len(lines); {
		l := lines[i]
		i++
		if p, ok := strings.CutPrefix(l, "+++ b/"); ok {
			path = strings.TrimSuffix(p, "\n")
			continue
		}
		if strings.HasPrefix(l, "diff --git ") || strings.HasPrefix(l, "--- a/") {
			continue
		}
		var line, before, start, after int
		if _, err := fmt.Sscanf(l, "@@ -%d,%d +%d,%d @@", &line, &before, &start, &after); err != nil || path == "" {
			return nil, fmt.Errorf("patch line %d: %q is no line of a patch by Diff", i, l)
		}
		hunk, n := takeHunk(lines[i:], before, after)
		if hunk == nil {
			return nil, fmt.Errorf("patch line %d: the hunk does not have %d and %d lines", i, before, after)
		}
		i += n
		out = append(out, runs(path, line, hunk)...)
	}
	return out, nil
}

// takeHunk returns the lines of a hunk by its counts, and how many lines of the patch they are; nil if they do not fit.
func takeHunk(lines []string, before, after int) (hunk []string, n int) {
	for ; before > 0 || after > 0; n++ {
		if n == len(lines) {
			return nil, n
		}
		switch lines[n][0] {
		case ' ':
			before, after = before-1, after-1
		case '-':
			before--
		case '+':
			after--
		case '\\':
			hunk[len(hunk)-1] = strings.TrimSuffix(hunk[len(hunk)-1], "\n")
			continue
		default:
			return nil, n
		}
		hunk = append(hunk, lines[n])
	}
	if n < len(lines) && lines[n][0] == '\\' {
		hunk[len(hunk)-1] = strings.TrimSuffix(hunk[len(hunk)-1], "\n")
		n++
	}
	return hunk, n
}

// runs cuts one hunk that begins at the given line into replacements.
func runs(path string, line int, hunk []string) []Edit {
	var out []Edit
	for i := 0; i < len(hunk); i++ {
		if hunk[i][0] == ' ' {
			line++
			continue
		}
		e, start := Edit{Path: path, Line: line}, i
		for ; i < len(hunk) && hunk[i][0] != ' '; i++ {
			if hunk[i][0] == '-' {
				e.Old += hunk[i][1:]
				line++
			} else {
				e.New += hunk[i][1:]
			}
		}
		switch {
		case e.Old != "":
			i--
		case i < len(hunk): // the line after is taken into the edit
			e.Old, e.New = hunk[i][1:], e.New+hunk[i][1:]
			line++
		case start > 0:
			e.Old, e.New, e.Line = hunk[start-1][1:], hunk[start-1][1:]+e.New, e.Line-1
		}
		out = append(out, e)
	}
	return out
}
