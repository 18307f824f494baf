package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/shadow"
)

// commandEnv makes the test binary be the program, so that tests can start and kill real processes of it.
const commandEnv = "MILEPOST_TEST_IS_COMMAND"

func TestMain(m *testing.M) {
	if text := os.Getenv(natsServerEnv); text != "" {
		natsMain(text)
	}
	if dir := os.Getenv(standInEnv); dir != "" {
		standIn(dir)
	}
	if os.Getenv(commandEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// process is a running milepost, in a process group of its own as under a shell.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan struct{}
}

// startProcess starts milepost; mark is what its own and its children's environment carries.
func startProcess(t *testing.T, mark string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), commandEnv+"="+mark)
	return startCommand(t, cmd)
}

// startCommand starts cmd, which runs milepost in the end.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 5 * time.Second // a child that outlives it must not hold its output open
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }() // the state says how it ended
	t.Cleanup(func() { p.kill(); <-p.done })
	return p
}

// kill ends the process like a machine that runs out of memory would.
func (p *process) kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

// interrupt does what Ctrl-C does: the whole group gets the signal.
func (p *process) interrupt() {
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil {
		p.t.Error(err)
	}
}

// terminate does what a scheduler does: the process alone gets the signal.
func (p *process) terminate() {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Error(err)
	}
}

// wait returns the exit code, -1 of a killed process.
func (p *process) wait(bound time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(bound):
		p.t.Fatalf("%v still runs after %v; it said:\n%s", p.cmd.Args[1:], bound, p.out.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// until polls a condition while the process runs.
func (p *process) until(what string, bound time.Duration, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.done:
			p.t.Fatalf("%v ended before %s; it said:\n%s", p.cmd.Args[1:], what, p.out.String())
		default:
		}
		if time.Now().After(end) {
			p.t.Fatalf("no %s within %v; %v said:\n%s", what, bound, p.cmd.Args[1:], p.out.String())
		}
	}
}

// leftovers lists the processes that carry the mark in their environment or mention dir in their command line, and the
// mounts below dir.
func leftovers(t *testing.T, mark, dir string) []string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // a process may end meanwhile
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		marked := slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return string(v) == commandEnv+"="+mark })
		if marked || bytes.Contains(command, []byte(dir)) {
			out = append(out, e.Name()+" "+string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			out = append(out, "mount "+line)
		}
	}
	return out
}

// nothingLeft expects every process and mount to be gone, soon: the kernel reaps on its own time.
func nothingLeft(t *testing.T, mark, dir string) {
	t.Helper()
	var left []string
	for range 100 {
		if left = leftovers(t, mark, dir); len(left) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

// TestWorkerDiesMidProbe kills a worker process while it runs a probe; another one, started in its place, takes the
// probe over and clears away what the dead one left.
func TestWorkerDiesMidProbe(t *testing.T) {
	needSandbox(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	server := shadow.DefaultServer()
	server.Dir, server.Listen = filepath.Join(dir, "nats"), true
	srv, err := shadow.StartServer(server)
	ok(err)
	defer srv.Close()
	nc, err := srv.Connect("test")
	ok(err)
	defer nc.Close()
	bases, err := repo.NewStore(filepath.Join(dir, "bases"))
	ok(err)
	blobs, err := repo.NewBlobs(filepath.Join(dir, "blobs"))
	ok(err)
	cfg := shadow.DefaultProber()
	cfg.Run, cfg.Epoch, cfg.Streams.AckWait = "r", 1, 2*time.Second
	p, err := shadow.NewProber(t.Context(), nc, cfg, blobs, shadow.WithBases(bases))
	ok(err)
	defer func() { ok(p.Close()) }()

	task := slowTask(t)
	mark := filepath.Base(dir)
	worker := func(name string) *process {
		return startProcess(t, mark, "worker", "shadow", "--nats", srv.URL(), "--slots", "1", "--name", name,
			"--dir", filepath.Join(dir, "worker"), "--set", "probes.worker.heartbeat=100ms", "-c", "reference")
	}
	first := worker("w1")
	type answer struct {
		probe *milepost.Probe
		err   error
	}
	answers := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		b, err := p.Baseline(ctx, task)
		answers <- answer{b, err}
	}()
	first.until("probe at work", 30*time.Second, func() bool {
		workers, err := shadow.ListWorkers(ctx, nc, cfg.Streams.Prefix, 250*time.Millisecond)
		return err == nil && len(workers) == 1 && workers[0].Busy == 1
	})
	first.kill()
	if code := first.wait(10 * time.Second); code != -1 {
		t.Errorf("the first worker ended by itself, exit code %d: %s", code, first.out.String())
	}
	second := worker("w2")
	a := <-answers
	if a.err != nil || !a.probe.Trusted || a.probe.Worker != "w2" || a.probe.Report.Count(milepost.Passed) != 2 {
		t.Errorf("baseline %+v, %v; the workers said: %s%s", a.probe, a.err, first.out.String(), second.out.String())
	}
	second.interrupt()
	if code := second.wait(30 * time.Second); code != exitDone {
		t.Errorf("the second worker: exit code %d: %s", code, second.out.String())
	}
	nothingLeft(t, mark, dir)
}

// slowTask is a task with one test that passes at once and one that takes four seconds.
func slowTask(t *testing.T) *milepost.Task {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	task := unittestTask(t)
	tree, err := treeWith(task.Repo, "test_slow.py", "import time, unittest\n\nclass T(unittest.TestCase):\n    def test_slow(self):\n        time.sleep(4)\n")
	ok(err)
	commit, err := exec.Command("git", "-C", task.Repo, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "slow").CombinedOutput()
	if err != nil {
		t.Fatalf("git commit: %v\n%s", err, commit)
	}
	head, err := exec.Command("git", "-C", task.Repo, "rev-parse", "HEAD").Output()
	ok(err)
	task.BaseCommit, task.BaseTree, task.Tests = strings.TrimSpace(string(head)), tree, []string{"test_m.T.test_one", "test_slow.T.test_slow"}
	return task
}
