package envtest

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
)

// Confined is what the escape suite needs to know of a driver that promises confinement.
type Confined struct {
	// New makes a driver whose /tmp and /dev/shm take at most 4 MiB each; the suite closes it. Where a Spec allows the
	// network, it is this machine's.
	New func(t *testing.T) driver.Driver
	// ExtraProcs is how many processes more than Limits.Procs a command may get.
	ExtraProcs int
	// Grouped says that memory and processes are limited for the whole command, Quota that the workspace's growth is.
	Grouped, Quota bool
	// Keeps says that /tmp lasts from one command to the next.
	Keeps bool
	// Allowed are attempts (names of escape.py) that the driver cannot forbid everywhere, as its documentation must say.
	Allowed []string
}

//go:embed escape.py
var escapeProgram []byte

// attempts are those of escape.py. free ones succeed where nothing confines (see [Control]); netted ones where the network is
// allowed.
var attempts = []struct {
	name         string
	free, netted bool
}{
	{"host_file", true, false}, {"host_file_by_link", true, false}, {"host_file_by_hard_link", true, false}, {"host_file_by_proc", true, false},
	{"host_file_by_process", true, false}, {"host_file_by_handle", false, false}, {"host_environment", true, false}, {"own_environment", true, false},
	{"grader_tests", true, false}, {"other_sandbox_process", true, false}, {"tcp", true, true}, {"udp", true, true}, {"abstract_socket", true, true},
	{"engine_socket", true, false}, {"signal_outside", true, false}, {"ptrace_outside", true, false}, {"memory_outside", true, false},
	{"privileges", true, false}, {"setuid_program", true, false}, {"become_another", true, false}, {"mount_namespace", true, false},
	{"user_namespace", true, false}, {"mount", true, false}, {"remount_root", true, false}, {"chroot", true, false}, {"device_node", true, false},
	{"devices", true, false}, {"kernel_settings", true, false}, {"sysrq", true, false}, {"control_groups", true, false}, {"keyring", true, false},
	{"system_files", true, false},
}

// outside is what the attempts go for, as escape.py reads it.
type outside struct {
	Secret   string   `json:"secret"`   // a file of the host that everybody may read
	Near     string   `json:"near"`     // the same where a hard link to it can be made
	Victim   int      `json:"victim"`   // a process of this user, with a secret in its environment, in the folder of the secret
	Port     int      `json:"port"`     // where TCP and UDP answer with a secret, on the loopback
	Abstract string   `json:"abstract"` // name of an abstract socket that does
	Sockets  []string `json:"sockets"`  // paths of sockets
	Key      string   `json:"key"`      // description of a key of this user
	Variable string   `json:"variable"` // NAME=VALUE of this process's own environment
}

const swordfish = "swordfish"

// newOutside makes all of it; it goes with the test.
func newOutside(t *testing.T) *outside {
	dir, err := os.MkdirTemp("/var/tmp", "milepost-escape-")
	must(t, "temporary folder", err)
	t.Cleanup(func() { must(t, "remove", os.RemoveAll(dir)) })
	must(t, "chmod", os.Chmod(dir, 0o755))
	o := &outside{Secret: filepath.Join(dir, "secret"), Abstract: fmt.Sprintf("milepost-escape-%d", os.Getpid()), Key: fmt.Sprintf("milepost-escape-%d", os.Getpid())}
	must(t, "secret", os.WriteFile(o.Secret, []byte(swordfish), 0o644))
	o.Near = o.Secret
	own, err := os.ReadFile("/proc/self/environ")
	must(t, "environment", err)
	o.Variable, _, _ = strings.Cut(string(own), "\x00")
	t.Setenv("MILEPOST_ESCAPE_SECRET", swordfish) // for the process outside
	o.listen(t, dir)
	victim := exec.Command("sleep", "1000")
	victim.Dir = dir
	must(t, "victim", victim.Start())
	t.Cleanup(func() {
		if err := victim.Process.Signal(unix.Signal(0)); err != nil {
			t.Errorf("the process outside is gone: %v", err)
		}
		_ = victim.Process.Kill()
		_ = victim.Wait()
	})
	o.Victim = victim.Process.Pid
	runtime.LockOSThread() // keyrings are a thread's
	defer runtime.UnlockOSThread()
	key, err := unix.AddKey("user", o.Key, []byte(swordfish), unix.KEY_SPEC_USER_KEYRING)
	if err != nil {
		t.Logf("no keyrings here: %v", err)
		return o
	}
	t.Cleanup(func() {
		_, err := unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0)
		must(t, "remove the key", err)
	})
	return o
}

// listen answers everybody on every kind of socket.
func (o *outside) listen(t *testing.T, dir string) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, "listen", err)
	o.Port = tcp.Addr().(*net.TCPAddr).Port
	udp, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	must(t, "listen", err)
	abstract, err := net.Listen("unix", "@"+o.Abstract)
	must(t, "listen", err)
	named, err := net.Listen("unix", filepath.Join(dir, "docker.sock"))
	must(t, "listen", err)
	o.Sockets = []string{filepath.Join(dir, "docker.sock"), "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"}
	done := make(chan struct{})
	for _, l := range []net.Listener{tcp, abstract, named} {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(swordfish)) // who connects only to see whether it can has gone
				_ = c.Close()
			}
		}()
	}
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 100)
		for {
			_, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo([]byte(swordfish), from)
		}
	}()
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{tcp, udp, abstract, named} {
			must(t, "close", c.Close())
			<-done
		}
	})
}

// escapist makes a sandbox that the attempts are run in.
func escapist(t *testing.T, e *env.Env, o *outside, network bool) *env.Sandbox {
	text, err := json.Marshal(o)
	must(t, "JSON", err)
	s, err := e.Create(ctx, env.Spec{Base: MakeBase(t), Network: network, Env: map[string]string{"ESCAPE": string(text)}})
	must(t, "Create", err)
	must(t, "WriteFile", s.WriteFile(ctx, "escape.py", escapeProgram, 0))
	return s
}

// grader makes another sandbox, with hidden tests and a process.
func grader(t *testing.T, e *env.Env) {
	s, err := e.Create(ctx, env.Spec{Base: MakeBase(t)})
	must(t, "Create", err)
	must(t, "WriteFile", s.WriteFile(ctx, "grader_tests.py", []byte(swordfish), 0))
	p, err := s.Start(ctx, env.Command{Argv: []string{"/bin/sh", "-c", `while read -r l; do echo "got $l"; done; : ` + swordfish}})
	must(t, "Start", err)
	t.Cleanup(func() { answers(t, p, "the process of another sandbox") })
}

// answers checks that a process which answers lines still does, then ends it.
func answers(t *testing.T, p *env.Process, what string) {
	t.Helper()
	fmt.Fprintln(p.Stdin, "line")
	var said [2]string
	if _, err := fmt.Fscanln(p.Stdout, &said[0], &said[1]); err != nil || said != [2]string{"got", "line"} {
		t.Errorf("%s: %q %v", what, said, err)
	}
	p.Kill()
	if _, err := p.Wait(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// try runs one attempt and reports whether it got out, and what it said.
func try(t *testing.T, s *env.Sandbox, name string) (bool, string) {
	t.Helper()
	r, err := s.Exec(ctx, env.Command{Argv: []string{"python3", "escape.py", name}, Limits: env.Limits{Wall: 60 * time.Second}})
	must(t, name, err)
	said := string(r.Stdout) + string(r.Stderr)
	if r.ExitCode != 0 || !bytes.HasPrefix(r.Stdout, []byte("held:")) && !bytes.HasPrefix(r.Stdout, []byte(swordfish)) {
		t.Errorf("%s: the attempt itself failed: exit %d: %s", name, r.ExitCode, said)
	}
	return bytes.HasPrefix(r.Stdout, []byte(swordfish)), strings.TrimSpace(said)
}

// Escapes tries to get out of the driver's sandboxes, to harm what is beside them, and to use up the machine.
func Escapes(t *testing.T, c Confined) {
	t.Run("Attempts", c.testAttempts)
	t.Run("Links", c.testEscapeLinks)
	t.Run("SpecialFiles", c.testSpecialFiles)
	t.Run("SwappedLinks", c.testSwappedLinks)
	t.Run("Plants", c.testPlants)
	t.Run("Survivors", c.testSurvivors)
	t.Run("ForkBomb", c.testForkBomb)
	t.Run("Memory", c.testMemory)
	t.Run("Disk", c.testDisk)
	t.Run("CPU", c.testCPU)
}

func (c Confined) env(t *testing.T) *env.Env {
	e := env.New(c.New(t))
	t.Cleanup(func() { must(t, "Env.Close", e.Close()) })
	return e
}

func (c Confined) testAttempts(t *testing.T) {
	o := newOutside(t)
	e := c.env(t)
	grader(t, e)
	s := escapist(t, e, o, false)
	for _, a := range attempts {
		out, said := try(t, s, a.name)
		if out && !slices.Contains(c.Allowed, a.name) {
			t.Errorf("%s: %s", a.name, said)
		}
	}
	netted := escapist(t, e, o, true)
	for _, a := range attempts {
		if !a.netted && a.name != "engine_socket" && a.name != "signal_outside" {
			continue // the network changes nothing for it
		}
		if out, said := try(t, netted, a.name); out != a.netted {
			t.Errorf("%s, with the network: escaped is %v: %s", a.name, out, said)
		}
	}
	// What cannot be tried without a sandbox.
	if _, err := s.Exec(ctx, env.Command{Argv: []string{"/bin/sh", "-c", "kill -9 -1; kill -9 1; sleep 0.2"}, Limits: env.Limits{Wall: 20 * time.Second}}); err != nil {
		t.Error(err)
	}
	if r := shell(t, s, env.Limits{}, "echo alive"); string(r.Stdout) != "alive\n" {
		t.Errorf("the sandbox after all this: %+v", r)
	}
}

// Control runs the attempts with a driver that confines nothing, as root, and wants them to succeed: each can be told from
// one that fails because it is wrong.
func Control(t *testing.T, unconfined driver.Driver) {
	o := newOutside(t)
	e := env.New(unconfined)
	t.Cleanup(func() { must(t, "Env.Close", e.Close()) })
	grader(t, e)
	s := escapist(t, e, o, false)
	o.Near = filepath.Join(filepath.Dir(s.Root()), "near") // beside the workspace, so on its file system
	must(t, "near", os.WriteFile(o.Near, []byte(swordfish), 0o644))
	text, err := json.Marshal(o)
	must(t, "JSON", err)
	for _, a := range attempts {
		if !a.free {
			continue
		}
		r, err := s.Exec(ctx, env.Command{Argv: []string{"python3", "escape.py", a.name}, Env: map[string]string{"ESCAPE": string(text)}})
		must(t, a.name, err)
		if bytes.HasPrefix(r.Stdout, []byte("held: [Errno 2]")) {
			t.Logf("%s: this machine does not have it: %s", a.name, r.Stdout)
		} else if !bytes.HasPrefix(r.Stdout, []byte(swordfish)) {
			t.Errorf("%s fails without a sandbox: %s %s", a.name, r.Stdout, r.Stderr)
		}
	}
}

// shell runs a script.
func shell(t *testing.T, s *env.Sandbox, limits env.Limits, script string, args ...string) env.Result {
	t.Helper()
	r, err := s.Exec(context.Background(), env.Command{Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...), Limits: limits})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return r
}
