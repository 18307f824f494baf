package envtest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// sandbox makes one, and a process in another one that must not notice anything of what is done in it.
func (c Confined) sandbox(t *testing.T, limits env.Limits) *env.Sandbox {
	e := c.env(t)
	other, err := e.Create(ctx, env.Spec{Base: MakeBase(t)})
	must(t, "Create", err)
	p, err := other.Start(ctx, env.Command{Argv: ShellArgv("serve")})
	must(t, "Start", err)
	t.Cleanup(func() { answers(t, p, "a command in another sandbox") })
	s, err := e.Create(ctx, env.Spec{Base: MakeBase(t), Limits: limits})
	must(t, "Create", err)
	return s
}

// alive checks that a sandbox still works.
func alive(t *testing.T, s *env.Sandbox, after string) {
	t.Helper()
	if r := shell(t, s, env.Limits{}, "echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("after %s: %+v", after, r)
	}
}

func (c Confined) testForkBomb(t *testing.T) {
	if !c.Grouped {
		t.Skip("processes are not limited for a command as a whole")
	}
	s := c.sandbox(t, env.Limits{})
	const procs = 30
	r := shell(t, s, env.Limits{Procs: procs, Wall: 30 * time.Second}, `exec python3 -c '
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0:
            time.sleep(100)
        n += 1
except OSError as e:
    print(n, e.errno)
'`)
	var n, errno int
	if _, err := fmt.Sscan(string(r.Stdout), &n, &errno); err != nil || n < procs-5 || n > procs+c.ExtraProcs || errno != 11 {
		t.Errorf("a fork bomb with %d processes: %q %s %v", procs, r.Stdout, r.Stderr, err)
	}
	alive(t, s, "a fork bomb")
	// The classic one, which never gives up by itself, and one that hides.
	for _, bomb := range []string{"f() { f | f & }; f; while :; do sleep 0.1; done",
		"f() { setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01 & done' & }; for i in 1 2 3 4 5; do f; done; sleep 1000"} {
		if r := shell(t, s, env.Limits{Procs: procs, Wall: 2 * time.Second}, bomb); !r.TimedOut && r.ExitCode == 0 {
			t.Errorf("a fork bomb ended well: %+v", r)
		}
		alive(t, s, "a classic fork bomb")
	}
}

func (c Confined) testMemory(t *testing.T) {
	s := c.sandbox(t, env.Limits{})
	grab := `exec python3 -c 'x = bytearray(400 << 20); print("got it")'`
	r := shell(t, s, env.Limits{Memory: 64 << 20}, grab)
	if r.ExitCode == 0 || r.TimedOut || len(r.Stdout) > 0 || c.Grouped != r.OutOfMemory {
		t.Errorf("400 MiB of 64: %+v %s", r, r.Stderr)
	}
	alive(t, s, "a command that ran out of memory")
	if r := shell(t, s, env.Limits{Memory: 1 << 30}, grab); r.OutOfMemory || string(r.Stdout) != "got it\n" {
		t.Errorf("400 MiB of 1024: %+v", r)
	}
	if !c.Grouped {
		return
	}
	// Many small processes, which together take more than there is; those that are left sleep.
	r = shell(t, s, env.Limits{Memory: 128 << 20, Wall: 20 * time.Second}, `exec python3 -c '
import os, time
for i in range(60):
    if os.fork() == 0:
        x = bytearray(6 << 20)
        for k in range(0, len(x), 4096): x[k] = 1
        time.sleep(100)
time.sleep(4)
'`)
	if !r.OutOfMemory {
		t.Errorf("360 MiB of 128 by sixty processes: %+v", r)
	}
	alive(t, s, "memory filled by many")
}

func (c Confined) testDisk(t *testing.T) {
	s := c.sandbox(t, env.Limits{Disk: 4 << 20, FileSize: 8 << 20})
	if r := shell(t, s, env.Limits{}, "head -c 9000000 /dev/zero >big; stat -c %s big; rm big"); c.Quota != bytes.Contains(r.Stderr, []byte("No space")) ||
		!c.Quota && !strings.HasPrefix(string(r.Stdout), "8388608\n") {
		t.Errorf("a file beyond the limits: %s %s", r.Stdout, r.Stderr)
	}
	if !c.Quota {
		t.Skip("the growth of the workspace is not bounded")
	}
	for _, dir := range []string{"/tmp", "/dev/shm", "/var/tmp"} {
		if r := shell(t, s, env.Limits{}, `head -c 5000000 /dev/zero >"$1"/x`, dir); r.ExitCode == 0 {
			t.Errorf("%s takes more than its size: %+v", dir, r)
		}
		shell(t, s, env.Limits{}, `rm -f "$1"/x`, dir)
	}
	r := shell(t, s, env.Limits{}, "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >f$i || exit 9; done")
	if r.ExitCode != 9 || !bytes.Contains(r.Stderr, []byte("No space")) {
		t.Errorf("a workspace beyond its growth: %+v", r)
	}
	if err := s.WriteFile(ctx, "pkg/core.py", make([]byte, 1<<20), 0); milepost.KindOf(err) != milepost.KindLimit {
		t.Errorf("WriteFile into a full workspace: %v", err)
	}
	if data, _, err := s.ReadFile(ctx, "pkg/core.py"); err != nil || string(data) != "x = 1\n" {
		t.Errorf("the file after the failed write: %d bytes, %v", len(data), err)
	}
	if r := shell(t, s, env.Limits{}, "i=0; rm f*; while [ $i -lt 20000 ]; do : >e$i || exit 9; i=$((i+1)); done"); r.ExitCode == 0 {
		t.Error("a workspace takes any number of empty files")
	}
	must(t, "Reset of a full workspace", s.Reset(ctx))
	if changes, err := s.Changes(ctx); err != nil || len(changes) != 0 {
		t.Errorf("after Reset: %v %v", changes, err)
	}
}

func (c Confined) testCPU(t *testing.T) {
	s := c.sandbox(t, env.Limits{})
	if r := shell(t, s, env.Limits{CPU: time.Second, Wall: 50 * time.Second}, "while :; do :; done"); r.TimedOut || r.ExitCode != 137 {
		t.Errorf("an endless loop with a second of CPU: %+v", r)
	}
	if r := shell(t, s, env.Limits{}, "kill -SEGV $$"); r.ExitCode != 139 {
		t.Errorf("a signal: %+v", r)
	}
}
