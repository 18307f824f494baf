package tools

import (
	"slices"
	"strings"
)

// contentOperands picks the file operands of a program that prints files. Nil where the call shows no content: sed that
// edits in place, head or tail of nothing.
func contentOperands(name string, args []word) []word {
	var valued []string // options whose value is the next word
	script := false     // the first operand is a program, not a file
	switch name {
	case "head", "tail":
		valued = []string{"-n", "-c", "--lines", "--bytes"}
	case "nl":
		valued = []string{"-b", "-v", "-w", "-s", "-n", "-i", "-d", "-f", "-h", "-l"}
	case "sed":
		valued = []string{"-e", "-f", "--expression", "--file", "-l"}
		script = true
	}
	var operands []word
	for i := 0; i < len(args); i++ {
		w := args[i].text
		switch {
		case w == "--":
			operands = append(operands, args[i+1:]...)
			i = len(args)
		case w == "-" || !strings.HasPrefix(w, "-"):
			if (name == "head" || name == "tail") && strings.HasPrefix(w, "+") {
				continue
			}
			operands = append(operands, args[i])
		case slices.Contains(valued, w):
			if (name == "head" || name == "tail") && i+1 < len(args) && args[i+1].text == "0" {
				return nil
			}
			script = script && w != "-e" && w != "-f" && w != "--expression" && w != "--file"
			i++
		case name == "sed" && (strings.HasPrefix(w, "--in-place") || (!strings.HasPrefix(w, "--") && strings.Contains(w, "i"))):
			return nil
		case name == "sed" && (strings.HasPrefix(w, "--expression=") || (!strings.HasPrefix(w, "--") && strings.HasSuffix(w, "e"))):
			if strings.HasSuffix(w, "e") { // "-ne": its value is the next word
				i++
			}
			script = false
		case (name == "head" || name == "tail") && slices.Contains([]string{"-n0", "-c0", "-0", "--lines=0", "--bytes=0"}, w):
			return nil
		}
	}
	if script && len(operands) > 0 {
		operands = operands[1:]
	}
	return slices.DeleteFunc(operands, func(w word) bool { return w.text == "-" })
}

// grepOperands picks the file operands of grep or rg and the letters of its flags (long names as their letter where
// one matters here).
func grepOperands(args []word) (operands []word, flags string) {
	valuedLong := []string{"--include", "--exclude", "--exclude-dir", "--max-count", "--after-context", "--before-context", "--context", "--glob", "--type"}
	long := map[string]string{"--recursive": "r", "--quiet": "q", "--silent": "q", "--files-with-matches": "l",
		"--files-without-match": "L", "--count": "c"}
	pattern := true // the first operand is the pattern
	for i := 0; i < len(args); i++ {
		w := args[i].text
		switch {
		case w == "--":
			operands = append(operands, args[i+1:]...)
			i = len(args)
		case w == "-" || !strings.HasPrefix(w, "-"):
			operands = append(operands, args[i])
		case strings.HasPrefix(w, "--"):
			flags += long[w]
			if strings.HasPrefix(w, "--regexp") || strings.HasPrefix(w, "--file=") || w == "--file" {
				pattern = false
			}
			if slices.Contains(valuedLong, w) || w == "--regexp" || w == "--file" {
				i++
			}
		default:
			letters, valued := shortFlags(w[1:])
			flags += letters
			if strings.ContainsAny(letters, "ef") {
				pattern = false
			}
			if valued {
				i++
			}
		}
	}
	if pattern && len(operands) > 0 {
		operands = operands[1:]
	}
	return operands, flags
}

// shortFlags reads grouped short flags up to one that takes a value; valued says that the value is the next word.
func shortFlags(group string) (letters string, valued bool) {
	for i, c := range group {
		letters += string(c)
		if strings.ContainsRune("efmABCgtd", c) {
			return letters, i == len(group)-1
		}
	}
	return letters, false
}
