package testrun

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// good is a task whose run shows that the slot is sound: it looks for traces of earlier runs, too.
var good = map[string]string{
	"helper.py": "VALUE = 42\n",
	"test_good.py": `
import os, sys, unittest
class Good(unittest.TestCase):
    def test_value(self):
        import helper
        self.assertEqual(helper.VALUE, 42)
    def test_alone(self):
        mine = {os.getpid(), os.getppid(), 1}
        self.assertEqual([p for p in os.listdir("/proc") if p.isdigit() and int(p) not in mine], [])
    def test_clean(self):
        self.assertEqual(os.listdir("/tmp") + os.listdir("/dev/shm"), [])
        self.assertEqual(len(os.listdir("/mnt/trees")), 1)
    def test_unpolluted(self):
        self.assertNotIn("evil", sys.modules)
        self.assertFalse(hasattr(unittest, "polluted"))
        self.assertNotIn("POLLUTED", os.environ)
`}

var goodTests = []string{"test_good.Good.test_alone", "test_good.Good.test_clean", "test_good.Good.test_unpolluted", "test_good.Good.test_value"}

// hostile are bodies of a module that a test module imports; the second test of three calls f.
var hostile = []struct {
	name, module string
	status       milepost.ProbeStatus
	states       string // of test_a, test_b (which calls evil.f), test_c
}{
	{"exit in a test", "import os\ndef f(): os._exit(0)\n", milepost.ProbeCompleted, "PNN"},
	{"exit at import", "import os\nos._exit(0)\n", milepost.ProbeCompleted, "NNN"},
	{"SystemExit in a test", "def f(): raise SystemExit(0)\n", milepost.ProbeCompleted, "PEP"},
	{"SystemExit at import", "raise SystemExit(0)\n", milepost.ProbeCompleted, "EEE"},
	{"KeyboardInterrupt at import", "raise KeyboardInterrupt\n", milepost.ProbeCompleted, "EEE"},
	{"interrupt to itself", "import os, signal\ndef f(): os.kill(os.getpid(), signal.SIGINT)\n", milepost.ProbeCompleted, "PNN"},
	{"kill itself", "import os\ndef f(): os.kill(os.getpid(), 9)\n", milepost.ProbeCompleted, "PNN"},
	{"kill all", "import os\ndef f(): os.kill(-1, 9)\n", milepost.ProbeCompleted, "PEP"}, // kills its resident parents; alone it finds nobody
	{"stop the parent", "import os, signal\ndef f(): os.kill(os.getppid(), signal.SIGSTOP)\n", milepost.ProbeCompleted, "PPP"},
	{"hang in a test", "import time\ndef f(): time.sleep(1000)\n", milepost.ProbeTimeout, ""},
	{"hang at import", "while True: pass\n", milepost.ProbeTimeout, ""},
	{"ignore signals and hang", "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef f(): time.sleep(1000)\n", milepost.ProbeTimeout, ""},
	{"garbage on standard output", "import os\nfor i in range(200): os.write(1, b'\\xff{\"nonce\":\"x\",\"results\":\"\"}\\n' * 100)\ndef f(): pass\n", milepost.ProbeCompleted, "PPP"},
	{"print a result", "import os\ndef f():\n    for fd in (1, 2): os.write(fd, b'{\"test\": \"test_e.E.test_b\", \"state\": \"PASSED\"}\\n')\n    assert False\n", milepost.ProbeCompleted, "PFP"},
	{"close every descriptor", "import os\ndef f(): os.closerange(0, 4096)\n", milepost.ProbeCompleted, "PNN"},
	{"close the streams", "import sys\ndef f():\n    sys.stdout.close(); sys.stderr.close(); sys.stderr = None\n    assert False\n", milepost.ProbeCompleted, "PFP"},
	{"fork and stay", "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        while True:\n            open('/tmp/tick', 'w').close(); time.sleep(.001)\n", milepost.ProbeCompleted, "PPP"},
	{"thread that never ends", "import threading, time\ndef f(): threading.Thread(target=time.sleep, args=(1000,)).start()\n", milepost.ProbeCompleted, "PPP"},
	{"fork bomb", "import os\ndef f():\n    while True:\n        try: os.fork()\n        except OSError: pass\n", milepost.ProbeTimeout, ""},
	{"leave files", "import os\ndef f():\n    for d in ('/tmp', '/dev/shm', '/mnt/trees'):\n        os.makedirs(d + '/a/b'); open(d + '/a/b/f', 'w').close(); os.symlink('/', d + '/a/l'); os.chmod(d + '/a/b', 0)\n", milepost.ProbeCompleted, "PPP"},
	{"pollute", "import os, unittest\nunittest.polluted = True\nos.environ['POLLUTED'] = '1'\ndef f(): pass\n", milepost.ProbeCompleted, "PPP"},
	{"replace unittest", "import unittest\nunittest.TestCase.run = None\ndef f(): pass\n", milepost.ProbeCompleted, "NNN"},
	{"atexit that hangs", "import atexit, time\natexit.register(time.sleep, 1000)\ndef f(): pass\n", milepost.ProbeCompleted, "PPP"},
	{"error that cannot be printed", "class E(Exception):\n    def __str__(self): raise SystemExit(3)\ndef f(): raise E\n", milepost.ProbeCompleted, "PEP"},
	{"recursion", "def f(): f()\n", milepost.ProbeCompleted, "PEP"},
	{"crash", "import ctypes\ndef f(): ctypes.string_at(0)\n", milepost.ProbeCompleted, "PNN"},
	{"change directory and path", "import os, sys\nos.chdir('/')\nsys.path[:] = []\ndef f(): pass\n", milepost.ProbeCompleted, "PPP"},
	{"remove the tree", "import os, shutil\ndef f(): shutil.rmtree(os.getcwd())\n", milepost.ProbeCompleted, "PPP"},
}

// TestHostileCode runs code that misbehaves in a resident process and, after each, a task that must not notice.
func TestHostileCode(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Limits.Procs = 64; c.Grace = time.Second })
	check := b.task(good, goodTests...)
	b.run(check, milepost.ProbeCompleted, "PPPP")
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{Runner: b.Runner, t: t, blobs: b.blobs, store: b.store}
			task := b.task(map[string]string{
				"evil.py": c.module,
				"test_e.py": "import unittest, evil\nclass E(unittest.TestCase):\n    def test_a(self): pass\n" +
					"    def test_b(self): evil.f()\n    def test_c(self): pass\n",
			}, "test_e.E.test_a", "test_e.E.test_b", "test_e.E.test_c")
			task.Test.Timeout = 1500 * time.Millisecond
			out := b.run(task, c.status, c.states)
			if c.status == milepost.ProbeCompleted && strings.Contains(c.states, "N") && out.Reason == "" {
				t.Error("no reason says why tests are missing")
			}
			b.run(check, milepost.ProbeCompleted, "PPPP")
		})
	}
}

// TestWrongNonce replaces the resident program by one that answers another request.
func TestWrongNonce(t *testing.T) {
	program := residentProgram
	t.Cleanup(func() { residentProgram = program })
	residentProgram = strings.Replace(program, `"nonce": request["nonce"]`, `"nonce": "another"`, 1)
	b := newBench(t, nil)
	task := b.task(calc, calcTests...)
	_, err := b.Run(t.Context(), task, task.BaseTree, nil)
	wantKind(t, err, milepost.KindCorrupt, "another request")
	residentProgram = "print('not JSON')"
	_, err = b.Run(t.Context(), task, task.BaseTree, nil)
	wantKind(t, err, milepost.KindCorrupt, "not JSON")
	residentProgram = "raise SystemExit('no luck')"
	_, err = b.Run(t.Context(), task, task.BaseTree, nil)
	wantKind(t, err, milepost.KindUnavailable, "no luck")
	residentProgram = program
	b.run(task, milepost.ProbeCompleted, "FPPN")
}

// TestManyAtOnce runs different trees side by side on fewer slots than runs, with short-lived slots and several images.
func TestManyAtOnce(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Slots = 2; c.MaxUses = 3 })
	task := b.task(calc, calcTests...)
	type variant struct {
		task   milepost.Task
		delta  []milepost.TreeChange
		tree   string
		states string
	}
	var variants []variant
	for i, v := range []struct{ code, states string }{{"def add(a, b):\n    return a + b\n", "PPPN"}, {"def add(a, b):\n    return 3\n", "PFPN"}, {"def add(a, b):\n    return b - a\n", "FPPN"}} {
		delta, tree := b.delta(task, map[string]*string{"calc/core.py": text(v.code)})
		copied := *task
		copied.Image = fmt.Sprintf("local:%d", i%2)
		variants = append(variants, variant{copied, delta, tree, v.states})
	}
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for i := range 6 {
				v := variants[(w+i)%len(variants)]
				out, err := b.Run(t.Context(), &v.task, v.tree, v.delta)
				if err != nil {
					t.Error(err)
					return
				}
				letters, _ := out.Report.MarshalText()
				if v.states == "FPPN" && string(letters) == "PPPN" || out.Status != milepost.ProbeCompleted {
					t.Errorf("%s: %s, want %s", out.Status, letters, v.states)
				}
			}
		})
	}
	wg.Wait()
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if b.pool.live != len(b.pool.idle) || b.pool.live > 2 {
		t.Fatalf("%d slots live, %d idle, at most 2 allowed", b.pool.live, len(b.pool.idle))
	}
}
