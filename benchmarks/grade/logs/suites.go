package logs

// suites is the stack of suite names above a line, by indentation.
type suites struct {
	names   []string
	indents []int
}

// enter makes an indented line the innermost suite, below those that are indented less. Other lines change nothing.
func (s *suites) enter(line string) {
	in := indent(line)
	if in == 0 {
		return
	}
	n := len(s.names)
	for n > 0 && s.indents[n-1] >= in {
		n--
	}
	s.names, s.indents = append(s.names[:n], strip(line)), append(s.indents[:n], in)
}

// path is the names of the suites and of a test.
func (s *suites) path(test string) []string { return append(s.names[:len(s.names):len(s.names)], test) }
