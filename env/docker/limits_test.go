package docker_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/agent"
)

func TestForkBomb(t *testing.T) {
	s := box(t, nil, env.Spec{})
	const procs = 30
	r := sh(t, s, env.Limits{Procs: procs, Wall: 30 * time.Second}, `exec python3 -c '
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
	if _, err := fmt.Sscan(string(r.Stdout), &n, &errno); err != nil || n < procs-5 || n > procs+agent.OverheadProcs || errno != 11 {
		t.Errorf("a fork bomb with %d processes: %q %s %v", procs, r.Stdout, r.Stderr, err)
	}
	alive(t, s, "a fork bomb")
	// The classic ones, which never give up by themselves: alone, and beside a command that must not be harmed.
	bomb := "f() { f | f & }; f; while :; do sleep 0.1; done"
	if r := sh(t, s, env.Limits{Procs: procs, Wall: 2 * time.Second}, bomb); !r.TimedOut && r.ExitCode == 0 {
		t.Errorf("a fork bomb ended well: %+v", r)
	}
	alive(t, s, "a classic fork bomb")
	beside, err := s.Start(ctx, env.Command{Argv: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	hidden := "f() { setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01 & done' & }; for i in 1 2 3 4 5; do f; done; sleep 1000"
	if r := sh(t, s, env.Limits{Procs: procs, Wall: 2 * time.Second}, hidden); !r.TimedOut {
		t.Errorf("a fork bomb beside another command: %+v", r)
	}
	fmt.Fprintln(beside.Stdin, "still")
	var word string
	if _, err := fmt.Fscanln(beside.Stdout, &word); err != nil || word != "still" {
		t.Errorf("the command beside a fork bomb: %q %v", word, err)
	}
	beside.Kill()
	if _, err := beside.Wait(); err != nil {
		t.Error(err)
	}
	alive(t, s, "a fork bomb beside another command")
}

func TestMemory(t *testing.T) {
	s := box(t, nil, env.Spec{})
	grab := `exec python3 -c 'x = bytearray(400 << 20); print("got it")'`
	if r := sh(t, s, env.Limits{Memory: 64 << 20}, grab); !r.OutOfMemory || r.ExitCode == 0 || r.TimedOut || len(r.Stdout) > 0 {
		t.Errorf("400 MiB of 64: %+v", r)
	}
	alive(t, s, "a command that ran out of memory")
	if r := sh(t, s, env.Limits{Memory: 1 << 30}, grab); r.OutOfMemory || string(r.Stdout) != "got it\n" {
		t.Errorf("400 MiB of 1024: %+v", r)
	}
	// Many small processes that offer themselves last, and files up to the brim.
	sh(t, s, env.Limits{Memory: 128 << 20, Wall: 20 * time.Second}, `head -c 1000000000 /dev/zero >/tmp/fill; head -c 1000000000 /dev/zero >/dev/shm/fill; exec python3 -c '
import os, time
for i in range(40):
    if os.fork() == 0:
        try:
            open("/proc/self/oom_score_adj", "w").write("0")
        except OSError:
            pass
        x = bytearray(6 << 20)
        for k in range(0, len(x), 4096): x[k] = 1
        time.sleep(100)
time.sleep(5)
'`)
	sh(t, s, env.Limits{Memory: 1 << 30}, "rm -f /tmp/fill /dev/shm/fill")
	alive(t, s, "memory filled by many")
}

func TestFull(t *testing.T) {
	s := box(t, func(c *docker.Config) { c.TmpSize = 1 << 20 }, env.Spec{Limits: env.Limits{Disk: 4 << 20, FileSize: 2 << 20}})
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if r := sh(t, s, env.Limits{}, `head -c 1500000 /dev/zero >"$1"/x`, dir); r.ExitCode == 0 || !bytes.Contains(r.Stderr, []byte("No space")) {
			t.Errorf("%s takes more than its size: %+v", dir, r)
		}
	}
	if r := sh(t, s, env.Limits{}, "head -c 3000000 /dev/zero >big; stat -c %s big"); !strings.HasPrefix(string(r.Stdout), "2097152\n") {
		t.Errorf("a file beyond the limit: %s %s", r.Stdout, r.Stderr)
	}
	r := sh(t, s, env.Limits{}, "rm big; for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >f$i || exit 9; done")
	if r.ExitCode != 9 || !bytes.Contains(r.Stderr, []byte("No space")) {
		t.Errorf("a workspace beyond its growth: %+v", r)
	}
	err := s.WriteFile(ctx, "pkg/core.py", make([]byte, 1<<20), 0)
	if milepost.KindOf(err) != milepost.KindLimit {
		t.Errorf("WriteFile into a full workspace: %v", err)
	}
	if data, _, err := s.ReadFile(ctx, "pkg/core.py"); err != nil || string(data) != "x = 1\n" {
		t.Errorf("the file after the failed write: %d bytes, %v", len(data), err)
	}
	if r := sh(t, s, env.Limits{}, "i=0; rm f*; while [ $i -lt 20000 ]; do : >e$i || exit 9; i=$((i+1)); done"); r.ExitCode == 0 {
		t.Error("a workspace takes any number of empty files")
	}
	if r := sh(t, s, env.Limits{}, "echo x >/root-file"); r.ExitCode == 0 {
		t.Error("the image can be written")
	}
	if err := s.Reset(ctx); err != nil {
		t.Errorf("Reset of a full workspace: %v", err)
	}
	if c, err := s.Changes(ctx); err != nil || len(c) != 0 {
		t.Errorf("after Reset: %v %v", c, err)
	}
}

func TestCPU(t *testing.T) {
	s := box(t, func(c *docker.Config) { c.CPUs = 0.5 }, env.Spec{})
	r := sh(t, s, env.Limits{CPU: time.Second, Wall: 50 * time.Second}, "while :; do :; done")
	if r.TimedOut || r.ExitCode != 137 {
		t.Errorf("an endless loop with a second of CPU: %+v", r)
	}
	if r.Duration < 1800*time.Millisecond {
		t.Errorf("a second of CPU on half a processor took %v", r.Duration)
	}
	if r := sh(t, s, env.Limits{}, "kill -SEGV $$"); r.ExitCode != 139 {
		t.Errorf("a signal: %+v", r)
	}
}

// TestSpecialFiles checks that nothing a task leaves in the workspace makes the driver hang or look elsewhere.
func TestSpecialFiles(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, `mkfifo pipe; rm README.md; mkfifo README.md; rm -r dir; mkfifo dir; ln -s pipe topipe
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range []string{"pipe", "topipe", "sock", "README.md"} {
			if _, _, err := s.ReadFile(ctx, p); milepost.KindOf(err) == "" {
				t.Errorf("ReadFile %s: no error", p)
			}
			if err := s.WriteFile(ctx, p, []byte("x"), 0); milepost.KindOf(err) != milepost.KindInvalid {
				t.Errorf("WriteFile %s: %v", p, err)
			}
		}
		if err := s.Walk(ctx, "dir", func(env.FileInfo) error { return nil }); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("Walk of a pipe: %v", err)
		}
		c, err := s.Changes(ctx)
		if err != nil || len(c) != 4 || !c[0].Deleted {
			t.Errorf("Changes: %+v %v", c, err)
		}
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("the driver hangs on a special file")
	}
}

// TestLocked lets a command take away every right to what it changed: that hides nothing from Changes.
func TestLocked(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, `echo new >pkg/core.py; echo more >dir/new; chmod 000 pkg/core.py dir/new README.md; chmod 000 pkg/sub pkg dir`)
	c, err := s.Changes(ctx)
	if err != nil || len(c) != 2 || c[0].Path != "dir/new" || string(c[0].Data) != "more\n" || c[1].Path != "pkg/core.py" || string(c[1].Data) != "new\n" {
		t.Errorf("Changes of locked files: %+v %v", c, err)
	}
	if err := s.Reset(ctx); err != nil {
		t.Errorf("Reset: %v", err)
	}
	if c, err := s.Changes(ctx); err != nil || len(c) != 0 {
		t.Errorf("after Reset: %+v %v", c, err)
	}
}

// TestMemoryOfFiles fills the workspace, then asks for a command with less memory than the files take.
func TestMemoryOfFiles(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, "head -c 400000000 /dev/zero >a; head -c 100000000 /dev/zero >b; true", "x")
	r, err := s.Exec(ctx, env.Command{Argv: []string{"true"}, Limits: env.Limits{Memory: 32 << 20}})
	if k := milepost.KindOf(err); k != milepost.KindLimit && !(err == nil && r.OutOfMemory) {
		t.Errorf("a command with less memory than the files take: %+v %v", r, err)
	}
	sh(t, s, env.Limits{}, "rm -f a b")
	alive(t, s, "too little memory")
}

// TestSwappedLinks lets a command swap a directory for a link to /etc while the driver reads below it.
func TestSwappedLinks(t *testing.T) {
	s := box(t, nil, env.Spec{})
	p, err := s.Start(ctx, env.Command{Argv: []string{"python3", "-c", `
import os
os.mkdir("real"); open("real/passwd", "w").write("mine"); os.symlink("/etc", "evil"); os.rename("real", "d")
print("ready", flush=True)
while True:
    os.rename("d", "real"); os.rename("evil", "d"); os.rename("d", "evil"); os.rename("real", "d")
`}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(p.Stdout, new(string)); err != nil {
		t.Fatal(err)
	}
	read := 0
	for range 1000 {
		data, _, err := s.ReadFile(ctx, "d/passwd")
		if err == nil && string(data) != "mine" {
			t.Fatalf("read a file outside the workspace: %q", data)
		}
		if err == nil {
			read++
		}
		if err := s.WriteFile(ctx, "d/passwd", []byte("mine"), 0); milepost.KindOf(err).Infra() {
			t.Fatal(err)
		}
	}
	t.Logf("read %d times of 1000", read)
	p.Kill()
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
}
