package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/shadow"
	"github.com/milepost-rl/milepost/shadow/natstest"
)

// machine stands for another machine: a network namespace with one link to this one, and a mount namespace in which the
// folders that the orchestrator keeps its things in, and the checkout, are empty.
type machine struct {
	t     *testing.T
	ns    string
	here  string   // this machine's address on the link
	dir   string   // the machine's own disk
	empty []string // folders that it does not have
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces take root")
	}
	for _, program := range []string{"ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s command (packages iproute2, util-linux)", program)
		}
	}
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	n := os.Getpid() % (256 * 64)
	m := &machine{t: t, ns: fmt.Sprint("mpmachine", n), here: fmt.Sprintf("10.201.%d.%d", n/64, 4*(n%64)+1), empty: []string{checkout, os.TempDir()}} // the former may lie in the latter
	if m.dir, err = os.MkdirTemp("/var/tmp", "milepost-machine-"); err != nil {
		t.Fatal(err)
	}
	near, far := fmt.Sprint("mpmh", n), fmt.Sprint("mpmt", n)
	t.Cleanup(func() {
		m.ip("netns", "del", m.ns) // takes the link with it
		if err := os.RemoveAll(m.dir); err != nil {
			t.Error(err)
		}
	})
	for _, args := range [][]string{
		{"netns", "add", m.ns}, {"link", "add", near, "type", "veth", "peer", "name", far, "netns", m.ns},
		{"addr", "add", m.here + "/30", "dev", near}, {"link", "set", near, "up"},
		{"-n", m.ns, "addr", "add", fmt.Sprintf("10.201.%d.%d/30", n/64, 4*(n%64)+2), "dev", far}, {"-n", m.ns, "link", "set", far, "up"},
		{"-n", m.ns, "link", "set", "lo", "up"},
	} {
		m.ip(args...)
	}
	return m
}

func (m *machine) ip(args ...string) {
	m.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		m.t.Errorf("ip %v: %v: %s", args, err, out)
	}
}

// take copies a file onto the machine's disk and returns its path there.
func (m *machine) take(file string) string {
	m.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		m.t.Fatal(err)
	}
	to := filepath.Join(m.dir, filepath.Base(file))
	if err := os.WriteFile(to, text, 0o700); err != nil {
		m.t.Fatal(err)
	}
	return to
}

// start runs a program of the machine; the process is the program's own, so signals reach it.
func (m *machine) start(mark, program string, args ...string) *process {
	m.t.Helper()
	script := "set -e\n"
	for _, dir := range m.empty {
		script += "mount -t tmpfs none '" + dir + "'\n"
	}
	script += "cd /\nexec \"$@\"\n"
	argv := append([]string{"netns", "exec", m.ns, "unshare", "--mount", "sh", "-c", script, "sh", program}, args...)
	cmd := exec.Command("ip", argv...)
	cmd.Env = append(os.Environ(), commandEnv+"="+mark, "TMPDIR="+m.dir)
	return startCommand(m.t, cmd)
}

// TestWorkerOnAnotherMachine runs workers that have the program, the server's URL, a credentials file and the authority, and
// nothing else of the run: they fetch what they need, and leave as a scheduler asks them to.
func TestWorkerOnAnotherMachine(t *testing.T) {
	t.Run("bubblewrap", func(t *testing.T) {
		needSandbox(t)
		workOnAnotherMachine(t, func(*testing.T) []string { return nil })
	})
	t.Run("docker", func(t *testing.T) {
		if testing.Short() {
			t.Skip("starts a Docker engine")
		}
		workOnAnotherMachine(t, func(t *testing.T) []string {
			engine := dockertest.Config(t)
			t.Cleanup(func() {
				if err := dockertest.Close(); err != nil {
					t.Error(err)
				}
			})
			return []string{"--set", "sandbox.driver=docker", "--set", "sandbox.docker.hosts=[" + engine.Hosts[0] + "]", "--set", "sandbox.docker.image=" + engine.Image,
				"--set", "sandbox.docker.pull=" + engine.Pull, "--set", "sandbox.docker.agent=" + engine.Agent}
		})
	})
}

func workOnAnotherMachine(t *testing.T, sandbox func(*testing.T) []string) {
	m := newMachine(t)
	more := sandbox(t)
	p, task, flags := m.run(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := m.take(self)
	worker := func(name string) *process {
		return m.start(name+filepath.Base(m.dir), program, append(append([]string{"worker", "shadow", "--slots", "1", "--name", name, "--dir", filepath.Join(m.dir, name),
			"-c", "reference", "--set", "probes.worker.heartbeat=100ms"}, flags...), more...)...)
	}
	busy := func(name string) func() bool {
		return func() bool {
			for _, w := range p.Workers() {
				if w.Name == name && w.Busy == 1 {
					return true
				}
			}
			return false
		}
	}
	probe := func(id string) {
		t.Helper()
		if err := p.Publish(t.Context(), milepost.ProbeRequest{ID: id, Kind: milepost.ProbeVerdict, Task: task, Episode: id, Tree: task.BaseTree}); err != nil {
			t.Fatal(err)
		}
	}

	// One SIGTERM: it finishes the probe in hand, acknowledges it and leaves.
	first := worker("w1")
	probe("e1/verdict")
	first.until("probe at work", 60*time.Second, busy("w1"))
	first.terminate()
	if code := first.wait(60 * time.Second); code != exitDone {
		t.Errorf("exit code %d: %s", code, first.out.String())
	}
	got := p.Await(t.Context(), []string{"e1/verdict"}, 5*time.Second)["e1/verdict"]
	if !got.Trusted || got.Worker != "w1" || got.Report.Count(milepost.Passed) != 2 {
		t.Errorf("probe %+v; the worker said %s", got, first.out.String())
	}
	if s := p.Stats(); s.Redelivered+s.Retries != 0 {
		t.Errorf("the probe was not acknowledged: %+v", s)
	}

	// A second SIGTERM: it ends at once; the probe is another worker's.
	other := *task
	other.Tests, task = []string{task.Tests[1], task.Tests[0]}, &other // another probe than the first
	second := worker("w2")
	probe("e2/verdict")
	second.until("probe at work", 60*time.Second, busy("w2"))
	second.terminate()
	second.until("drain", 10*time.Second, func() bool {
		for _, w := range p.Workers() {
			if w.Name == "w2" && w.Drains {
				return true
			}
		}
		return false
	})
	began := time.Now()
	second.terminate()
	second.wait(2 * time.Second)
	if ws := second.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %v after %s: %s", second.cmd.ProcessState, time.Since(began), second.out.String())
	}
	third := worker("w3")
	if got := p.Await(t.Context(), []string{"e2/verdict"}, time.Minute)["e2/verdict"]; !got.Trusted || got.Worker != "w3" {
		t.Errorf("probe %+v; the workers said %s%s", got, second.out.String(), third.out.String())
	}
	third.terminate()
	if code := third.wait(60 * time.Second); code != exitDone || strings.Contains(third.out.String(), "warning") {
		t.Errorf("exit code %d: %s", code, third.out.String())
	}
	for _, name := range []string{"w1", "w2", "w3"} {
		nothingLeft(t, name+filepath.Base(m.dir), filepath.Join(m.dir, name))
	}
}

// run starts a secured server on the link and a run on it, and returns the run's prober, a slow task, and what a worker
// needs to reach it.
func (m *machine) run(t *testing.T) (*shadow.Prober, *milepost.Task, []string) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	connect := shadow.DefaultConnect()
	connect.URL, connect.TLSCA, connect.Creds, _ = natstest.Secured(t, m.here)
	nc, err := shadow.Connect(connect)
	ok(err)
	t.Cleanup(nc.Close)
	bases, err := repo.NewStore(t.TempDir())
	ok(err)
	blobs, err := repo.NewBlobs(t.TempDir())
	ok(err)
	cfg := shadow.DefaultProber()
	cfg.Run, cfg.Epoch, cfg.Recheck, cfg.Streams.AckWait = "r", 1, 0, 2*time.Second
	cfg.Streams.MaxRequests, cfg.Streams.MaxObjects = 8<<20, 64<<20
	p, err := shadow.NewProber(t.Context(), nc, cfg, blobs, shadow.WithBases(bases))
	ok(err)
	t.Cleanup(func() { ok(p.Close()) })
	return p, slowTask(t), []string{"--nats", connect.URL, "--creds", m.take(connect.Creds), "--tls-ca", m.take(connect.TLSCA)}
}
