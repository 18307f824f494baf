package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// TestMemoryWithoutGroups is the limit where no control group keeps it.
func TestMemoryWithoutGroups(t *testing.T) {
	s := box(t, Config{CgroupRoot: "none"}, env.Spec{})
	if r := sh(t, s, env.Limits{Memory: 64 << 20}, `exec python3 -c 'x = bytearray(400 << 20); print("got it")'`); r.ExitCode == 0 || !bytes.Contains(r.Stderr, []byte("MemoryError")) {
		t.Errorf("400 MiB of 64, by rlimit: %+v", r)
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
