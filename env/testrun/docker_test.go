package testrun

import (
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
)

// TestDocker runs tests in containers, both ways: states, a change, a time-out with processes that hide, too much memory.
func TestDocker(t *testing.T) {
	for _, way := range []string{"fresh", "resident"} {
		t.Run(way, func(t *testing.T) {
			d, err := docker.New(t.Context(), dockertest.Config(t))
			if err != nil {
				t.Fatal(err)
			}
			b := newBenchWith(t, d, func(c *Config) { c.Resident = way == "resident" })
			task := b.task(calc, calcTests...)
			b.run(task, milepost.ProbeCompleted, "FPPN")
			delta, tree := b.delta(task, map[string]*string{"calc/core.py": text("def add(a, b):\n    return a + b\n"), "calc/extra/e.py": nil})
			b.runOn(task, tree, delta, milepost.ProbeCompleted, "PPEN")
			b.run(task, milepost.ProbeCompleted, "FPPN")

			hang := b.task(map[string]string{"test_h.py": "import unittest, os, time\nclass H(unittest.TestCase):\n    def test_h(self):\n" +
				"        if os.fork() == 0:\n            os.setsid()\n        time.sleep(1000)\n"}, "test_h.H.test_h")
			hang.Test.Timeout = 2 * time.Second
			b.run(hang, milepost.ProbeTimeout, "")
			b.cfg.Limits.Memory = 200 << 20
			if way == "fresh" { // a resident process has the limits that it was started with
				big := b.task(map[string]string{"test_m.py": "import unittest\nclass M(unittest.TestCase):\n    def test_m(self):\n" +
					"        x = bytearray(1 << 30)\n        for i in range(0, len(x), 4096):\n            x[i] = 1\n"}, "test_m.M.test_m")
				b.run(big, milepost.ProbeMemory, "")
			}
			b.run(task, milepost.ProbeCompleted, "FPPN")
		})
	}
}
