package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

var ctx = context.Background()

// box makes a sandbox on the suite's base.
func box(t testing.TB, cfg Config, spec env.Spec) *env.Sandbox {
	t.Helper()
	e := env.New(open(t, cfg))
	if spec.Base == "" {
		spec.Base = envtest.MakeBase(t)
	}
	s, err := e.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sh runs a shell script with the given limits.
func sh(t testing.TB, s *env.Sandbox, limits env.Limits, script string, args ...string) env.Result {
	t.Helper()
	r, err := s.Exec(ctx, env.Command{Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...), Limits: limits})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return r
}

// processes returns the ids of the host's processes whose command line holds marker.
func processes(t testing.TB, marker string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Contains(line, []byte(marker)) {
			out = append(out, pid)
		}
	}
	return out
}

func TestNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	const connect = `python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5); print("connected")' "$1"`
	if r := sh(t, box(t, Config{}, env.Spec{}), env.Limits{}, connect, port); r.ExitCode == 0 || !bytes.Contains(r.Stderr, []byte("Connection refused")) {
		t.Errorf("without the network: %d %s %s", r.ExitCode, r.Stdout, r.Stderr)
	}
	if r := sh(t, box(t, Config{}, env.Spec{Network: true}), env.Limits{}, connect, port); string(r.Stdout) != "connected\n" {
		t.Errorf("with the network: %d %s %s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

func TestHostFiles(t *testing.T) {
	t.Setenv("MILEPOST_TEST_SECRET", "swordfish")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("swordfish"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := box(t, Config{}, env.Spec{})
	r := sh(t, s, env.Limits{}, `
		ln -s "$1" link; cat link "$1" "/proc/1/root$1" "/proc/1/cwd/../../../../..$1" "/proc/self/root$1"
		env; cat /proc/1/environ /proc/2/environ /proc/self/environ
		cat /etc/shadow /proc/kcore /dev/mem /dev/vda /dev/sda
		ls /home /work /var /sys /root`, secret)
	if bytes.Contains(r.Stdout, []byte("swordfish")) || len(bytes.TrimSpace(sh(t, s, env.Limits{}, "cat /etc/shadow; ls /home /var /sys /boot").Stdout)) != 0 {
		t.Errorf("the host shows inside:\n%s", r.Stdout)
	}
	for _, p := range []string{"/x", "/usr/x", "/etc/x", "/etc/passwd", "/bin/x", "/dev/x", "/proc/sys/kernel/hostname",
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/oom_score_adj", "/proc/sys/vm/overcommit_memory", filepath.Dir(secret) + "/x"} {
		if r := sh(t, s, env.Limits{}, `echo x >"$1"`, p); r.ExitCode == 0 {
			t.Errorf("%s can be written", p)
		}
	}
	if r := sh(t, s, env.Limits{}, "touch /tmp/x /dev/shm/x /workspace/x && cat /tmp/x"); r.ExitCode != 0 {
		t.Errorf("the places that are meant for it cannot be written: %s", r.Stderr)
	}
	if r := sh(t, s, env.Limits{}, "ls -A /tmp /dev/shm"); strings.Contains(string(r.Stdout), "x") {
		t.Errorf("/tmp of one command shows in the next: %s", r.Stdout)
	}
}

func TestPrivileges(t *testing.T) {
	s := box(t, Config{}, env.Spec{})
	r := sh(t, s, env.Limits{}, "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")
	if want := "1000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n"; string(r.Stdout) != want {
		t.Errorf("privileges:\n%s", r.Stdout)
	}
	for _, script := range []string{"unshare -Ur true", "unshare -m true", "mount -t tmpfs x /tmp", "mknod x c 1 3", "chown 0:0 README.md", "chroot / true",
		"umount /workspace", "mount -o remount,rw /usr", "hostname x", "kill -9 1 && sleep 5 && false"} {
		if r := sh(t, s, env.Limits{Wall: time.Second}, script); r.ExitCode == 0 {
			t.Errorf("%s: succeeded", script)
		}
	}
	if r := sh(t, s, env.Limits{}, "echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("the sandbox after all this: %+v", r)
	}
}

func TestOutsideProcesses(t *testing.T) {
	outside := exec.Command("sleep", "1000")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = outside.Process.Kill()
		_ = outside.Wait()
	}()
	s := box(t, Config{}, env.Spec{})
	r := sh(t, s, env.Limits{}, `for p in "$1" "$2"; do kill -9 "$p" 2>/dev/null && echo killed; done; kill -9 -1; true`,
		fmt.Sprint(outside.Process.Pid), fmt.Sprint(os.Getpid()))
	if bytes.Contains(r.Stdout, []byte("killed")) {
		t.Error("a process outside can be signalled")
	}
	if err := outside.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process outside is gone: %v", err)
	}
	if r := sh(t, s, env.Limits{}, "ls /proc | grep -c '^[0-9]'"); strings.TrimSpace(string(r.Stdout)) > "6" {
		t.Errorf("%s processes are seen inside", r.Stdout)
	}
}

// TestNothingSurvives checks that an ended command leaves no process, however it hid them, in any way of ending.
func TestNothingSurvives(t *testing.T) {
	for _, cfg := range []Config{{}, {CgroupRoot: "none"}} {
		s := box(t, cfg, env.Spec{})
		for name, c := range map[string]struct {
			end  string
			wall time.Duration
		}{"exit": {"true", 0}, "time-out": {"sleep 1000", 500 * time.Millisecond}} {
			marker := fmt.Sprintf("marker-%d-%s%s", os.Getpid(), name, cfg.CgroupRoot)
			script := `for i in 1 2 3; do setsid sh -c 'trap "" TERM HUP INT; (sleep 0.5; touch late-$1; exec sleep 1000) & exec sleep 999' "$1" "$1" >/dev/null 2>&1 </dev/null & done
				(while :; do echo still; sleep 0.01; done) & ` + c.end
			r := sh(t, s, env.Limits{Wall: c.wall}, script, marker)
			if r.TimedOut != (c.wall > 0) {
				t.Errorf("%s: %+v", name, r)
			}
			if left := processes(t, marker); len(left) > 0 {
				t.Errorf("%s %+v: processes %v are left", name, cfg, left)
			}
			time.Sleep(700 * time.Millisecond)
			if _, err := s.Stat(ctx, "late-"+marker); milepost.KindOf(err) != milepost.KindNotFound {
				t.Errorf("%s: a process wrote after its command had ended: %v", name, err)
			}
		}
	}
}

func TestForkBomb(t *testing.T) {
	d := open(t, Config{})
	if d.cgroups == nil && os.Getuid() == 0 {
		t.Skip("no control groups, and the kernel exempts root from RLIMIT_NPROC: " + d.report.CgroupsReason)
	}
	s := box(t, Config{}, env.Spec{})
	r := sh(t, s, env.Limits{Procs: 20, Wall: 20 * time.Second}, `exec python3 -c '
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(100)
        n += 1
except OSError as e:
    print(n, e.errno)
'`)
	var n, errno int
	if _, err := fmt.Sscan(string(r.Stdout), &n, &errno); err != nil || n < 10 || n > 20 || errno != 11 {
		t.Errorf("a fork bomb with 20 processes: %q %s %v", r.Stdout, r.Stderr, err)
	}
	// The classic one, which never gives up by itself.
	r = sh(t, s, env.Limits{Procs: 20, Wall: time.Second}, "f() { f | f & }; f; while :; do sleep 0.1; done")
	if !r.TimedOut && r.ExitCode == 0 {
		t.Errorf("a fork bomb ended well: %+v", r)
	}
	if r := sh(t, s, env.Limits{}, "echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("after fork bombs: %+v", r)
	}
}

func TestMemory(t *testing.T) {
	grab := `exec python3 -c 'x = bytearray(400 << 20); print("got it")'`
	if d := open(t, Config{}); d.cgroups != nil {
		grouped(t, grab)
	} else {
		t.Log("no control groups: " + d.report.CgroupsReason)
	}
	s := box(t, Config{CgroupRoot: "none"}, env.Spec{})
	if r := sh(t, s, env.Limits{Memory: 64 << 20}, grab); r.ExitCode == 0 || !bytes.Contains(r.Stderr, []byte("MemoryError")) {
		t.Errorf("400 MiB of 64, by rlimit: %+v", r)
	}
}

// grouped is TestMemory where a control group counts for the whole command.
func grouped(t *testing.T, grab string) {
	s := box(t, Config{}, env.Spec{})
	if r := sh(t, s, env.Limits{Memory: 64 << 20}, grab); !r.OutOfMemory || r.ExitCode == 0 || r.TimedOut || len(r.Stdout) > 0 {
		t.Errorf("400 MiB of 64: %+v", r)
	}
	if r := sh(t, s, env.Limits{Memory: 1 << 30}, grab); r.OutOfMemory || string(r.Stdout) != "got it\n" {
		t.Errorf("400 MiB of 1024: %+v", r)
	}
	if r := sh(t, s, env.Limits{Memory: 64 << 20}, "head -c 200000000 /dev/zero >/tmp/x; ls -l /tmp"); !r.OutOfMemory {
		t.Errorf("/tmp does not count: %+v", r)
	}
}

func TestFull(t *testing.T) {
	s := box(t, Config{TmpSize: 1 << 20}, env.Spec{Limits: env.Limits{Disk: 4 << 20, FileSize: 2 << 20}})
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if r := sh(t, s, env.Limits{}, `head -c 1500000 /dev/zero >"$1"/x`, dir); r.ExitCode == 0 || !bytes.Contains(r.Stderr, []byte("No space")) {
			t.Errorf("%s takes more than its size: %+v", dir, r)
		}
	}
	if r := sh(t, s, env.Limits{}, "head -c 3000000 /dev/zero >big; stat -c %s big"); !strings.HasPrefix(string(r.Stdout), "2097152\n") {
		t.Errorf("a file beyond the limit: %s %s", r.Stdout, r.Stderr)
	}
	if d := open(t, Config{}); !d.report.Quota {
		t.Skip("no tmpfs can be mounted, so only file sizes are bounded")
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
	if r := sh(t, s, env.Limits{}, "i=0; rm f*; while [ $i -lt 100000 ]; do : >e$i || exit 9; i=$((i+1)); done"); r.ExitCode == 0 {
		t.Error("a workspace takes any number of empty files")
	}
}

func TestCPU(t *testing.T) {
	s := box(t, Config{}, env.Spec{})
	r := sh(t, s, env.Limits{CPU: time.Second, Wall: 50 * time.Second}, "while :; do :; done")
	if r.TimedOut || r.ExitCode != 137 {
		t.Errorf("an endless loop with a second of CPU: %+v", r)
	}
	if r := sh(t, s, env.Limits{}, "kill -SEGV $$"); r.ExitCode != 139 {
		t.Errorf("a signal: %+v", r)
	}
}

func TestMounts(t *testing.T) {
	ro, rw := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(ro, "f"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts := []env.Mount{{Host: ro, Path: "/mnt/ro"}, {Host: rw, Path: "/trees", Writable: true}}
	for _, unconfined := range []bool{false, true} {
		s := box(t, Config{Unconfined: unconfined}, env.Spec{Mounts: mounts})
		name := fmt.Sprint("made-", unconfined)
		r := sh(t, s, env.Limits{}, `cat "$1/f"; echo x >"$2/$3"; echo x >"$1/$3" && echo written`, s.Inside(mounts[0]), s.Inside(mounts[1]), name)
		if want := "hello"; !unconfined && string(r.Stdout) != want {
			t.Errorf("mounts: %q %s", r.Stdout, r.Stderr)
		}
		if _, err := os.Stat(filepath.Join(rw, name)); err != nil {
			t.Error(err)
		}
	}
	// What the host puts there later is seen by what runs already.
	s := box(t, Config{}, env.Spec{Mounts: mounts})
	p, err := s.Start(ctx, env.Command{Argv: []string{"/bin/sh", "-c", "read x; cat /trees/later"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rw, "later"), []byte("seen"), 0o644); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(p.Stdin, "go")
	var out bytes.Buffer
	if _, err := out.ReadFrom(p.Stdout); err != nil || out.String() != "seen" {
		t.Errorf("%q %v", out.String(), err)
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSpecialFiles checks that nothing a task leaves in the workspace makes the host hang or look elsewhere.
func TestSpecialFiles(t *testing.T) {
	s := box(t, Config{}, env.Spec{})
	locked := "chmod 000 pkg; mkdir -p locked/in; chmod 0 locked"
	if os.Getuid() != 0 {
		locked = "" // then they are locked to us, too, and Changes says so
	}
	sh(t, s, env.Limits{}, `mkfifo pipe; rm README.md; mkfifo README.md; rm -r dir; mkfifo dir; ln -s pipe topipe
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'; `+locked)
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
	case <-time.After(30 * time.Second):
		t.Fatal("the host hangs on a special file")
	}
}

// TestSwappedLinks lets a command swap a directory for a link to /etc while the host reads below it.
func TestSwappedLinks(t *testing.T) {
	s := box(t, Config{}, env.Spec{})
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
	for range 3000 {
		if data, _, err := s.ReadFile(ctx, "d/passwd"); err == nil && string(data) != "mine" {
			t.Fatalf("read the host's file: %q", data)
		}
		if err := s.WriteFile(ctx, "d/passwd", []byte("mine"), 0); err != nil && milepost.KindOf(err) == milepost.KindInternal {
			t.Fatal(err)
		}
	}
	p.Kill()
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRefusesWithoutBwrap(t *testing.T) {
	_, err := New(Config{Root: t.TempDir(), Bwrap: "no-such-bwrap"})
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "install the package bubblewrap") {
		t.Errorf("without bubblewrap: %v", err)
	}
	broken := filepath.Join(t.TempDir(), "bwrap")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho 'bwrap: no permissions' >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	_, err = New(Config{Root: root, Bwrap: broken})
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "no permissions") {
		t.Errorf("with a broken bubblewrap: %v", err)
	}
	assertNothingLeft(t, root)
	for _, cfg := range []Config{{Root: "relative"}, {Root: root, Workspace: "tape"}, {Root: root, TmpSize: -1}, {Root: root, Python: "/bin/false"},
		{Root: root, ReadOnly: []string{"x"}}} {
		var e *milepost.Error
		if _, err := New(cfg); !errors.As(err, &e) || e.Kind != milepost.KindInvalid {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestOddBase checks a base whose path holds what separates mount options.
func TestOddBase(t *testing.T) {
	base := filepath.Join(t.TempDir(), `a:b,c d\e`)
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := box(t, Config{}, env.Spec{Base: base})
	if r := sh(t, s, env.Limits{}, "cat f; echo y >f"); string(r.Stdout) != "x" {
		t.Errorf("%+v", r)
	}
	if c, err := s.Changes(ctx); err != nil || len(c) != 1 {
		t.Errorf("%v %v", c, err)
	}
}
