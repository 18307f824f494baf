package testrun

import (
	"fmt"
	"testing"

	"github.com/milepost-rl/milepost"
)

// micro is like a micro task: five modules, five test modules, ten tests.
func micro(b *bench) *milepost.Task {
	files := map[string]string{"pkg/__init__.py": "", "tests/__init__.py": ""}
	var tests []string
	for i := range 5 {
		var code string
		for j := range 20 {
			code += fmt.Sprintf("def f%d(x, y):\n    if x > y:\n        return x - y\n    return [x + i for i in range(y)]\n\n", j)
		}
		files[fmt.Sprintf("pkg/m%d.py", i)] = code
		files[fmt.Sprintf("tests/test_m%d.py", i)] = fmt.Sprintf("import unittest\nfrom pkg import m%d\n\nclass M(unittest.TestCase):\n    def test_a(self):\n"+
			"        self.assertEqual(m%d.f0(3, 1), 2)\n    def test_b(self):\n        self.assertEqual(m%d.f1(1, 2), [1, 2])\n", i, i, i)
		tests = append(tests, fmt.Sprintf("tests.test_m%d.M.test_a", i), fmt.Sprintf("tests.test_m%d.M.test_b", i))
	}
	return b.task(files, tests...)
}

func benchmarkRun(b *testing.B, resident bool) {
	x := newBench(b, func(c *Config) { c.Resident = resident })
	task := micro(x)
	x.run(task, milepost.ProbeCompleted, "PPPPPPPPPP")
	for b.Loop() {
		x.run(task, milepost.ProbeCompleted, "PPPPPPPPPP")
	}
}

// BenchmarkResident and BenchmarkFresh measure one probe of a micro task with ten tests.
func BenchmarkResident(b *testing.B) { benchmarkRun(b, true) }
func BenchmarkFresh(b *testing.B)    { benchmarkRun(b, false) }
