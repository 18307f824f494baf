package tools

import (
	"path"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// shellPlace is where a shell is: root is the repository's absolute path, "" where it is not known, and dir the working
// directory relative to it. Without sure the directory may be another one, or lie outside.
type shellPlace struct {
	root, dir string
	sure      bool
}

// relative gives an absolute path relative to the repository; ok is false where it lies outside, or the root is not known.
func (p shellPlace) relative(abs string) (rel string, ok bool) {
	abs = path.Clean(abs)
	if p.root == "" || (abs != p.root && !strings.HasPrefix(abs, strings.TrimSuffix(p.root, "/")+"/")) {
		return abs, false
	}
	rel = strings.TrimPrefix(strings.TrimPrefix(abs, p.root), "/")
	return path.Join(".", rel), true
}

// locate gives a path as a command writes it relative to the repository; ok is false where it may be another file.
func (p shellPlace) locate(name string) (rel string, ok bool) {
	if path.IsAbs(name) {
		if rel, ok := p.relative(name); ok {
			return rel, true
		}
		return path.Join(p.dir, name), false
	}
	return path.Join(p.dir, name), p.sure
}

// shellExposures says which files of the tree a shell command showed, read off the command itself: cat, head, tail,
// sed, nl, less and the like with path operands, grep and rg with files (level read: they print content) or directories
// (level search, for the paths in their output), behind "cd dir &&" and through pipes.
//
// The confidence is high only where all of this holds: the whole command exited with 0 and printed something; the file
// is in the tree; the program surely ran (it is not behind || or after a command like exit, and what && asks of it
// succeeded); every word it depends on is literal; neither it nor what its output is piped into redirects the output,
// and the latter passes lines on (head, grep, sort, ...). grep and rg must besides have succeeded themselves. Otherwise
// it is low, which earns nothing.
func shellExposures(command string, index repo.Index, start shellPlace, succeeded bool, stdout string) []milepost.Exposure {
	cmds, parsed := parseShell(command)
	lines := pipelines(cmds)
	r := shellReader{index: index, stdout: stdout, found: map[exposureKey]bool{}, place: start,
		sure: parsed && succeeded && strings.TrimSpace(stdout) != ""}
	for _, p := range lines {
		if !isCd(p) {
			r.printing++
		}
	}
	for i, p := range lines {
		r.pipeline(p, chained(lines, i))
	}
	return r.exposures()
}

// pipelines groups simple commands joined by pipes.
func pipelines(cmds []simple) [][]simple {
	var out [][]simple
	for _, c := range cmds {
		for len(c.words) > 0 && isAssignment(c.words[0].text) {
			c.words = c.words[1:]
		}
		if c.before == "|" && len(out) > 0 {
			out[len(out)-1] = append(out[len(out)-1], c)
			continue
		}
		out = append(out, []simple{c})
	}
	return out
}

func isAssignment(s string) bool {
	name, _, ok := strings.Cut(s, "=")
	return ok && name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

func isCd(p []simple) bool { return len(p) == 1 && len(p[0].words) > 0 && p[0].words[0].text == "cd" }

// chained reports whether pipeline i surely succeeded if the whole line did: only && follows it up to the end.
func chained(lines [][]simple, i int) bool {
	for _, p := range lines[i+1:] {
		if p[0].before != "&&" {
			return false
		}
	}
	last := lines[len(lines)-1]
	return last[len(last)-1].after != "&"
}

type exposureKey struct {
	path  string
	level milepost.ExposureLevel
}

// shellReader walks over the pipelines of a line and collects exposures; the value says whether confidence is high.
type shellReader struct {
	index    repo.Index
	stdout   string
	found    map[exposureKey]bool
	place    shellPlace
	sure     bool // nothing met so far makes the rest of the line uncertain
	printing int  // pipelines other than cd
}

// derailing commands make it uncertain what runs after them.
var derailing = []string{"exit", "exec", "return", "eval", "source", ".", "alias", "trap", "set", "shopt", "break", "continue",
	"if", "for", "while", "until", "case", "select", "function", "then", "do", "else", "{", "}", "[[", "!", "time", "coproc", "unset", "export"}

// passing programs print what they are piped, line by line or part of it.
var passing = []string{"cat", "head", "tail", "sed", "grep", "egrep", "fgrep", "rg", "nl", "less", "more", "sort", "uniq", "tac", "cut", "tr", "awk", "tee", "column", "expand", "fold"}

func (r *shellReader) pipeline(p []simple, succeeded bool) {
	ran := p[0].before == "" || p[0].before == ";" || p[0].before == "&" || (p[0].before == "&&" && succeeded)
	if isCd(p) {
		r.cd(p[0], ran)
		return
	}
	for i, c := range p {
		if len(c.words) == 0 {
			continue
		}
		name := c.words[0]
		if !name.sure || slices.Contains(derailing, name.text) {
			r.sure = false
			continue
		}
		high := r.sure && ran
		for j, d := range p[i:] {
			passes := j == 0 || (len(d.words) > 0 && slices.Contains(passing, d.words[0].text))
			high = high && !d.redirected && passes && d.after != "&"
		}
		switch path.Base(name.text) {
		case "cat", "nl", "less", "more", "tac", "head", "tail", "sed":
			r.reads(contentOperands(path.Base(name.text), c.words[1:]), high, milepost.ExposureRead)
		case "grep", "egrep", "fgrep", "rg":
			matched := (succeeded && i == len(p)-1) || r.printing == 1
			r.grep(path.Base(name.text), c.words[1:], high && matched)
		}
	}
}

func (r *shellReader) cd(c simple, ran bool) {
	if !ran || c.redirected || len(c.words) != 2 || !c.words[1].sure || strings.HasPrefix(c.words[1].text, "-") {
		r.place.sure = false
		return
	}
	r.place.dir, r.place.sure = r.place.locate(c.words[1].text)
	if c.after != "&&" && !isDir(r.index, r.place.dir) {
		r.place.sure = false // it may have failed and left the directory as it was
	}
}

// reads records operands that name files.
func (r *shellReader) reads(operands []word, high bool, level milepost.ExposureLevel) {
	for _, w := range operands {
		p, located := r.place.locate(w.text)
		_, there := r.index[p]
		r.add(p, level, high && there && w.sure && located)
	}
}

func (r *shellReader) add(p string, level milepost.ExposureLevel, high bool) {
	k := exposureKey{p, level}
	r.found[k] = r.found[k] || high
}

// grep records the files a grep or rg was given, and the paths in its output where it searched directories.
func (r *shellReader) grep(name string, args []word, high bool) {
	operands, flags := grepOperands(args)
	if strings.ContainsRune(flags, 'q') {
		return
	}
	level := milepost.ExposureRead
	if strings.ContainsAny(flags, "lLc") {
		level = milepost.ExposureSearch
	}
	recursive := name == "rg" || strings.ContainsAny(flags, "rR")
	var files []word
	searched := recursive && len(operands) == 0
	for _, w := range operands {
		if dir, _ := r.place.locate(w.text); recursive && w.sure && isDir(r.index, dir) {
			searched = true
			continue
		}
		files = append(files, w)
	}
	r.reads(files, high, level)
	if !searched {
		return
	}
	for line := range strings.SplitSeq(r.stdout, "\n") {
		shown, _, _ := strings.Cut(line, ":")
		p, located := r.place.locate(shown)
		if _, there := r.index[p]; there && shown != "" {
			r.add(p, milepost.ExposureSearch, high && r.printing == 1 && located)
		}
	}
}

func (r *shellReader) exposures() []milepost.Exposure {
	var out []milepost.Exposure
	for k, high := range r.found {
		e := milepost.Exposure{Path: k.path, Level: k.level, Confidence: "low"}
		if high {
			e.Confidence = "high"
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b milepost.Exposure) int {
		if a.Path != b.Path {
			return strings.Compare(a.Path, b.Path)
		}
		return strings.Compare(string(a.Level), string(b.Level))
	})
	return out
}
