package dataset

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// patchFiles are the files that a unified diff touches.
type patchFiles struct {
	changed []string // modified, deleted or renamed away: there before the patch; sorted
	created []string // there only after it; sorted
}

// filesOf reads the names out of a diff. It is lenient where git apply is: counts of hunks are not held against each
// other, and a diff without git's own headers is read too. A diff that names no file is an error.
func filesOf(patch string) (patchFiles, error) {
	d := diffNames{before: map[string]bool{}, after: map[string]bool{}}
	for line := range strings.Lines(patch) {
		if line = strings.TrimRight(line, "\r\n"); !d.inHunk(line) {
			d.header(line)
		}
	}
	var f patchFiles
	for name := range d.before {
		if !localFile(name) {
			return f, fmt.Errorf("the diff names %s, which is no path inside a repository", short(name))
		}
		f.changed = append(f.changed, name)
	}
	for name := range d.after {
		if !d.before[name] && localFile(name) {
			f.created = append(f.created, name)
		}
	}
	slices.Sort(f.changed)
	slices.Sort(f.created)
	if len(f.changed)+len(f.created) == 0 {
		return f, fmt.Errorf("no unified diff: it names no file (begins %s)", short(strings.TrimSpace(patch)))
	}
	return f, nil
}

// CreatedBy are the files, sorted, that are there only once a unified diff is applied. A text that is no diff is an error.
func CreatedBy(patch string) ([]string, error) {
	f, err := filesOf(patch)
	return f.created, err
}

// diffNames collects names while a diff is read line by line.
type diffNames struct {
	before, after map[string]bool // files that are there before the patch and after it
	git, old      string          // names of the file at hand: of git's header, and of its --- line
	left          [2]int          // lines that the hunk at hand still has on each side
}

// inHunk takes a line of a hunk's text, which may look like a header.
func (d *diffNames) inHunk(line string) bool {
	if d.left[0] <= 0 && d.left[1] <= 0 {
		return false
	}
	switch {
	case line == "" || line[0] == ' ':
		d.left[0]--
		d.left[1]--
	case line[0] == '-':
		d.left[0]--
	case line[0] == '+':
		d.left[1]--
	case line[0] != '\\':
		d.left = [2]int{} // a hunk that is shorter than it says
		return false
	}
	return true
}

func (d *diffNames) header(line string) {
	switch {
	case strings.HasPrefix(line, "diff --git "):
		if a, b, ok := gitNames(line); ok {
			d.before[a], d.after[b], d.git, d.old = true, true, b, ""
		}
	case strings.HasPrefix(line, "new file mode"):
		delete(d.before, d.git)
	case line == "--- /dev/null":
		d.old = "/dev/null"
	case strings.HasPrefix(line, "--- "):
		d.old = diffName(line[4:], "a/")
		d.before[d.old] = true
	case strings.HasPrefix(line, "+++ "):
		if name := diffName(line[4:], "b/"); name != "/dev/null" {
			d.after[name] = true
			if d.old == "/dev/null" {
				delete(d.before, name)
			}
		}
	case strings.HasPrefix(line, "@@ "):
		d.left = hunkCounts(line)
	}
}

// gitNames reads "diff --git a/X b/Y". Where the names hold " b/" the two halves are taken to be equal, as git does.
func gitNames(line string) (a, b string, ok bool) {
	rest := strings.TrimPrefix(line, "diff --git ")
	if strings.HasPrefix(rest, `"`) {
		return "", "", false // quoted: the --- and +++ lines tell
	}
	rest, ok = strings.CutPrefix(rest, "a/")
	if !ok {
		return "", "", false
	}
	if half := (len(rest) - 3) / 2; half > 0 && len(rest)%2 == 1 && rest[half:half+3] == " b/" && rest[:half] == rest[half+3:] {
		return rest[:half], rest[:half], true
	}
	a, b, ok = strings.Cut(rest, " b/")
	return a, b, ok
}

// diffName is the name of a --- or +++ line without prefix, time stamp and quotes.
func diffName(s, prefix string) string {
	s, _, _ = strings.Cut(s, "\t")
	if strings.HasPrefix(s, `"`) {
		s = strings.Trim(s, `"`)
	}
	return strings.TrimPrefix(s, prefix)
}

func hunkCounts(line string) (n [2]int) {
	fields := strings.Fields(line)
	for i := range 2 {
		if len(fields) < 3 {
			return n
		}
		_, count, ok := strings.Cut(fields[1+i], ",")
		if n[i] = 1; ok {
			if _, err := fmt.Sscanf(count, "%d", &n[i]); err != nil {
				return [2]int{}
			}
		}
	}
	return n
}

func localFile(p string) bool {
	return p != "" && p == path.Clean(p) && !path.IsAbs(p) && p != "." && p != ".." && !strings.HasPrefix(p, "../")
}

// reversePatch is the patch that undoes a patch, as git apply -R would.
func reversePatch(patch string) (string, error) {
	files, _, err := gitdiff.Parse(strings.NewReader(patch))
	if err != nil {
		return "", fmt.Errorf("unreadable unified diff: %w", err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("no unified diff: it names no file (begins %s)", short(strings.TrimSpace(patch)))
	}
	var out strings.Builder
	for _, f := range files {
		if f.IsCopy {
			return "", fmt.Errorf("file %s: a copy cannot be reversed from the patch alone", f.NewName)
		}
		out.WriteString(reversed(f).String())
	}
	return out.String(), nil
}

// reversed is the inverse of the change of one file.
func reversed(f *gitdiff.File) *gitdiff.File {
	r := *f
	r.OldName, r.NewName = f.NewName, f.OldName
	r.IsNew, r.IsDelete = f.IsDelete, f.IsNew
	r.OldMode, r.NewMode = f.NewMode, f.OldMode
	if f.IsNew {
		r.OldMode, r.NewMode = f.NewMode, 0
	}
	if f.IsDelete {
		r.OldMode, r.NewMode = 0, f.OldMode
	}
	if f.NewMode == 0 && !f.IsDelete { // an unchanged mode stands on the old side alone
		r.OldMode, r.NewMode = f.OldMode, 0
	}
	r.OldOIDPrefix, r.NewOIDPrefix = f.NewOIDPrefix, f.OldOIDPrefix
	r.BinaryFragment, r.ReverseBinaryFragment = f.ReverseBinaryFragment, f.BinaryFragment
	r.TextFragments = nil
	for _, t := range f.TextFragments {
		r.TextFragments = append(r.TextFragments, reversedHunk(t))
	}
	return &r
}

func reversedHunk(t *gitdiff.TextFragment) *gitdiff.TextFragment {
	r := *t
	r.OldPosition, r.NewPosition = t.NewPosition, t.OldPosition
	r.OldLines, r.NewLines = t.NewLines, t.OldLines
	r.LinesAdded, r.LinesDeleted = t.LinesDeleted, t.LinesAdded
	r.Lines = nil
	var added []gitdiff.Line // what the patch deleted, which stands behind what it added
	for _, l := range t.Lines {
		switch l.Op {
		case gitdiff.OpDelete:
			added = append(added, gitdiff.Line{Op: gitdiff.OpAdd, Line: l.Line})
		case gitdiff.OpAdd:
			r.Lines = append(r.Lines, gitdiff.Line{Op: gitdiff.OpDelete, Line: l.Line})
		case gitdiff.OpContext:
			r.Lines = append(append(r.Lines, added...), l)
			added = nil
		}
	}
	r.Lines = append(r.Lines, added...)
	return &r
}
