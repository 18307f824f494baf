package docker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/envtest"
)

// box makes a sandbox on the suite's base, in an environment of its own that is closed with the test.
func box(t testing.TB, change func(*docker.Config), spec env.Spec) *env.Sandbox {
	t.Helper()
	e := env.New(open(t, change))
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return boxIn(t, e, spec)
}

func boxIn(t testing.TB, e *env.Env, spec env.Spec) *env.Sandbox {
	t.Helper()
	if spec.Base == "" {
		spec.Base = envtest.MakeBase(t)
	}
	s, err := e.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
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

// alive checks that a sandbox still works and that no process is in it but the agent and the one that asks.
func alive(t testing.TB, s *env.Sandbox, after string) {
	t.Helper()
	r := sh(t, s, env.Limits{}, `n=0; for p in /proc/[0-9]*; do if read -r line <"$p/stat"; then n=$((n+1)); fi; done 2>/dev/null; echo alive $n`)
	if want := "alive 3\n"; string(r.Stdout) != want { // the agent, a supervisor, the shell
		list := sh(t, s, env.Limits{}, `cat /proc/[0-9]*/stat 2>/dev/null | cut -d' ' -f1-4`)
		t.Errorf("after %s: %q %s, processes:\n%s", after, r.Stdout, r.Stderr, list.Stdout)
	}
}

func TestHostFiles(t *testing.T) {
	t.Setenv("MILEPOST_TEST_SECRET", "swordfish")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("swordfish"), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := ""
	s := box(t, func(c *docker.Config) { socket = strings.TrimPrefix(c.Hosts[0], "unix://") }, env.Spec{})
	r := sh(t, s, env.Limits{}, `
		ln -s "$1" evil; cat evil "$1" "/proc/1/root$1" "/proc/1/cwd/../../../../..$1" "/proc/self/root$1"
		env; cat /proc/1/environ /proc/self/environ
		cat /etc/shadow /proc/kcore /dev/mem /dev/vda /dev/sda
		ls -a /home /root /mnt /boot`, secret)
	if bytes.Contains(r.Stdout, []byte("swordfish")) {
		t.Errorf("the host shows inside:\n%s", r.Stdout)
	}
	if _, _, err := s.ReadFile(ctx, "evil"); milepost.KindOf(err) != milepost.KindDenied {
		t.Errorf("reading through a link to the host's file: %v", err)
	}
	for _, p := range []string{socket, "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"} {
		if r := sh(t, s, env.Limits{}, `test -e "$1"`, p); r.ExitCode == 0 {
			t.Errorf("the engine's socket %s is inside", p)
		}
	}
	for _, p := range []string{"/x", "/usr/x", "/etc/x", "/etc/passwd", "/bin/x", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern",
		"/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory", "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/memory.max", "/sys/kernel/x", agent.Path, filepath.Dir(agent.Path) + "/x", filepath.Dir(secret) + "/x"} {
		if r := sh(t, s, env.Limits{}, `echo x >"$1"`, p); r.ExitCode == 0 {
			t.Errorf("%s can be written", p)
		}
	}
	if r := sh(t, s, env.Limits{}, "touch /tmp/x /dev/shm/x /workspace/x && cat /tmp/x"); r.ExitCode != 0 {
		t.Errorf("the places that are meant for it cannot be written: %s", r.Stderr)
	}
	if err := s.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if r := sh(t, s, env.Limits{}, "ls -A /tmp /dev/shm"); strings.Contains(string(r.Stdout), "x") {
		t.Errorf("/tmp survives a reset: %s", r.Stdout)
	}
}

func TestPrivileges(t *testing.T) {
	s := box(t, nil, env.Spec{})
	r := sh(t, s, env.Limits{}, "grep -E 'CapEff|CapBnd|CapPrm|NoNewPrivs|Seccomp:' /proc/self/status")
	if want := "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"; string(r.Stdout) != want {
		t.Errorf("privileges:\n%s", r.Stdout)
	}
	for _, script := range []string{"unshare -Ur true", "unshare -m true", "mount -t tmpfs x /tmp", "mknod x b 8 0", "chown 7:7 README.md", "chroot / true",
		"umount /workspace", "mount -o remount,rw /", "hostname x", "echo -1000 >/proc/self/oom_score_adj", "date -s 2000-01-01"} {
		if r := sh(t, s, env.Limits{Wall: 5 * time.Second}, script); r.ExitCode == 0 {
			t.Errorf("%s: succeeded", script)
		}
	}
	alive(t, s, "attempts at privileges")
}

// TestAgent lets commands attack process 1, which runs as the same user.
func TestAgent(t *testing.T) {
	s := box(t, nil, env.Spec{})
	for _, script := range []string{"cat /proc/1/mem", "cat /proc/1/environ", "ls -l /proc/1/fd | grep -e '->'", "echo x >/proc/1/fd/1", "cat /proc/1/maps", "ls /proc/1/root/",
		"ls -l /proc/$PPID/fd/ | grep -e '->'", "echo x >/proc/$PPID/fd/4"} {
		if r := sh(t, s, env.Limits{}, script); r.ExitCode == 0 {
			t.Errorf("%s: succeeded: %s", script, r.Stdout)
		}
	}
	sh(t, s, env.Limits{}, "i=1; while [ $i -le 64 ]; do kill -$i 1; i=$((i+1)); done; sleep 0.2")
	alive(t, s, "every signal to process 1")
	for _, script := range []string{"kill -9 $PPID; sleep 100", "kill -9 -1; sleep 100", "kill -STOP $PPID; exit 3"} {
		r := sh(t, s, env.Limits{Wall: 20 * time.Second}, script)
		if r.ExitCode != 137 {
			t.Errorf("%s: %+v", script, r)
		}
		alive(t, s, script)
	}
}
