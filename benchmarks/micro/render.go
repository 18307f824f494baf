package micro

import (
	"fmt"
	"slices"
	"strings"
)

// files are the contents of the repository by path.
type files map[string]string

// render writes the files of a world; fixed says whether the faulty functions have their right body.
func (w *world) render(fixed bool) files {
	out := files{}
	for _, m := range w.modules {
		out[m.name+".py"] = m.source(fixed)
		out[testPath(m.name)] = m.testSource()
	}
	return out
}

func testPath(name string) string { return "tests/test_" + name + ".py" }

func (m module) source(fixed bool) string {
	var parts []string
	for _, fn := range m.functions {
		body := fn.body
		if fixed {
			body = fn.right
		}
		parts = append(parts, fmt.Sprintf("def %s(%s):\n    \"\"\"%s\"\"\"\n    return %s\n",
			fn.Name, strings.Join(fn.Params, ", "), fn.Doc, body.expr))
	}
	return strings.Join(parts, "\n")
}

// testSource imports inside each test, so that a file broken by an edit makes its own tests end in an error, which is
// evidence, and leaves the tests of other files alone.
func (m module) testSource() string {
	var b strings.Builder
	b.WriteString("import unittest\n\n\nclass Test(unittest.TestCase):\n")
	for _, fn := range m.functions {
		for i, e := range fn.tests {
			fmt.Fprintf(&b, "    def test_%s_%d(self):\n        from %s import %s\n        self.assertEqual(%s(%s), %s)\n\n",
				fn.Name, i+1, m.name, fn.Name, fn.Name, e.in, e.want.text)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// testID is the id of the i-th test of a function, as the unittest log gives it.
func testID(module, function string, i int) string {
	return fmt.Sprintf("test_%s.Test.test_%s_%d", module, function, i+1)
}

// testIDs are the ids that the unittest log gives the tests of a world, sorted.
func (w *world) testIDs() []string {
	var out []string
	for _, m := range w.modules {
		for _, fn := range m.functions {
			for i := range fn.tests {
				out = append(out, testID(m.name, fn.Name, i))
			}
		}
	}
	slices.Sort(out)
	return out
}

// statement is what the agent is told: one line for each fault, what a call gives and what it should give.
func (w *world) statement(hint Hint) string {
	lines := make([]string, len(w.faults))
	for i, f := range w.faults {
		name := f.fn.Name
		if hint == HintModule {
			name = f.module + "." + name
		}
		got, verb := f.wrong.eval(f.shown.in), "gives"
		if got.raised {
			verb = "raises"
		}
		lines[i] = fmt.Sprintf("%s(%s) %s %s, not %s.", name, f.shown.in, verb, got.text, f.shown.want.text)
	}
	return strings.Join(lines, "\n")
}
