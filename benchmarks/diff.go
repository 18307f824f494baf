package benchmarks

import (
	"fmt"
	"strings"
)

// contextLines is how many unchanged lines a hunk shows on each side, as git does.
const contextLines = 3

// Diff is the change of one file as a patch that git apply takes: path is relative to the repository, before and after
// are whole text files that both exist. It is "" where they are equal.
func Diff(path, before, after string) string {
	if before == after {
		return ""
	}
	a, b := splitLines(before), splitLines(after)
	var out strings.Builder
	fmt.Fprintf(&out, "diff --git a/%s b/%s\n--- a/%s\n+++ b/%s\n", path, path, path, path)
	for _, h := range hunks(align(a, b)) {
		h.write(&out)
	}
	return out.String()
}

// Added is the patch that makes a new text file.
func Added(path, text string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "diff --git a/%s b/%s\nnew file mode 100644\n", path, path)
	if text != "" {
		fmt.Fprintf(&out, "--- /dev/null\n+++ b/%s\n", path)
		for _, h := range hunks(align(nil, splitLines(text))) {
			h.write(&out)
		}
	}
	return out.String()
}

// ApplyCommand is a shell command that applies a patch to the working directory.
func ApplyCommand(patch string) string {
	if !strings.HasSuffix(patch, "\n") {
		patch += "\n"
	}
	mark := "MILEPOST_PATCH"
	for strings.Contains(patch, mark) {
		mark += "_"
	}
	return "git apply - <<'" + mark + "'\n" + patch + mark
}

// splitLines splits a text into lines that keep their newline; the last one may lack it.
func splitLines(s string) []string {
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// edit is one line of an alignment: op is ' ' (both), '-' (before only) or '+' (after only).
type edit struct {
	op   byte
	line string
	a, b int // index of the line in before and after (of the next one where it is not in that file)
}

// align is a shortest alignment of two files by the longest common subsequence of what lies between their common head
// and tail. It takes time and memory in the product of the two middles, which are small where one line changed.
func align(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	ma, mb := a[head:len(a)-tail], b[head:len(b)-tail]
	table := make([][]int, len(ma)+1)
	for i := range table {
		table[i] = make([]int, len(mb)+1)
	}
	for i := len(ma) - 1; i >= 0; i-- {
		for j := len(mb) - 1; j >= 0; j-- {
			if ma[i] == mb[j] {
				table[i][j] = table[i+1][j+1] + 1
			} else {
				table[i][j] = max(table[i+1][j], table[i][j+1])
			}
		}
	}
	var out []edit
	i, j := 0, 0
	same := func(n int) {
		for range n {
			out = append(out, edit{' ', a[i], i, j})
			i, j = i+1, j+1
		}
	}
	same(head)
	for i-head < len(ma) || j-head < len(mb) {
		x, y := i-head, j-head
		switch {
		case x < len(ma) && y < len(mb) && ma[x] == mb[y]:
			same(1)
		case y == len(mb) || x < len(ma) && table[x+1][y] >= table[x][y+1]:
			out = append(out, edit{'-', a[i], i, j})
			i++
		default:
			out = append(out, edit{'+', b[j], i, j})
			j++
		}
	}
	same(tail)
	return out
}

// hunk is a run of changes with its context.
type hunk []edit

// hunks cuts an alignment into hunks: changes that are near enough to share context share one.
func hunks(edits []edit) []hunk {
	var out []hunk
	start, end := -1, -1
	for i, e := range edits {
		if e.op == ' ' {
			continue
		}
		if start >= 0 && i-contextLines <= end {
			end = min(i+1+contextLines, len(edits))
			continue
		}
		if start >= 0 {
			out = append(out, hunk(edits[start:end]))
		}
		start, end = max(i-contextLines, 0), min(i+1+contextLines, len(edits))
	}
	if start >= 0 {
		out = append(out, hunk(edits[start:end]))
	}
	return out
}

func (h hunk) write(out *strings.Builder) {
	var na, nb int
	for _, e := range h {
		if e.op != '+' {
			na++
		}
		if e.op != '-' {
			nb++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(h[0].a, na), span(h[0].b, nb))
	for _, e := range h {
		out.WriteByte(e.op)
		out.WriteString(e.line)
		if !strings.HasSuffix(e.line, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// span is the place of a hunk in one file: "start,count", start from 1, or the line before where there are none.
func span(start, count int) string {
	if count > 0 {
		start++
	}
	return fmt.Sprintf("%d,%d", start, count)
}
