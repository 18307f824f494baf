package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/shadow"
)

// lockedBuffer collects what a command that is still running prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestWorkerServesOverTheNetwork(t *testing.T) {
	if _, err := local.New(local.Config{Root: t.TempDir()}); err != nil {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server := shadow.DefaultServer()
	server.Dir, server.Listen, server.Token = t.TempDir(), true, "sesame"
	srv, err := shadow.StartServer(server)
	ok(err)
	defer srv.Close()
	url := strings.Replace(srv.URL(), "nats://", "nats://sesame@", 1)

	task := unittestTask(t)
	nc, err := srv.Connect("test")
	ok(err)
	defer nc.Close()
	bases, err := repo.NewStore(t.TempDir())
	ok(err)
	blobs, err := repo.NewBlobs(t.TempDir())
	ok(err)
	cfg := shadow.DefaultProber()
	cfg.Run, cfg.Epoch = "r", 1
	p, err := shadow.NewProber(t.Context(), nc, cfg, blobs, shadow.WithBases(bases))
	ok(err)
	defer func() { ok(p.Close()) }()

	ctx, stop := context.WithCancel(t.Context())
	out, code := &lockedBuffer{}, make(chan int, 1)
	root := newRootCommand()
	root.SetOut(out)
	root.SetErr(out)
	dir := t.TempDir()
	go func() {
		code <- run(ctx, root, []string{"worker", "shadow", "--nats", url, "--slots", "1", "--name", "w1", "--dir", dir, "--metrics", "127.0.0.1:0"})
	}()
	bctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b, err := p.Baseline(bctx, task)
	if err != nil || !b.Trusted || b.Worker != "w1" || b.Report.Count(milepost.Passed) != 1 {
		t.Errorf("baseline %+v, %v; the worker said: %s", b, err, out)
	}
	list, listed := newRootCommand(), &lockedBuffer{}
	list.SetOut(listed)
	if c := run(t.Context(), list, []string{"worker", "list", "--nats", url, "--wait", "3s"}); c != exitDone || !strings.Contains(listed.String(), "w1") {
		t.Errorf("list: exit code %d, %s", c, listed)
	}
	if served := scraped(t, out.String()); !strings.Contains(served, `milepost_worker_probes_served_total{worker="w1"} 1`) || !strings.Contains(served, `milepost_worker_slots{worker="w1"} 1`) {
		t.Errorf("Prometheus reads %s", served)
	}
	stop()
	if c := <-code; c != exitDone || strings.Contains(out.String(), "warning") || strings.Contains(out.String(), "sesame") {
		t.Errorf("exit code %d, output %s", c, out)
	}
	left, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
	ok(err)
	for _, e := range left {
		if e.IsDir() && strings.HasPrefix(e.Name(), "ws") {
			t.Errorf("the worker left %s behind", e.Name())
		}
	}
}

// unittestTask is a task with one passing test, in a repository that was made for it.
func unittestTask(t *testing.T) *milepost.Task {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "test_m.py"), []byte("import unittest\n\nclass T(unittest.TestCase):\n    def test_one(self):\n        pass\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "base")
	return &milepost.Task{ID: "t", Kind: milepost.BugRepair, Repo: dir, BaseCommit: git("rev-parse", "HEAD"), BaseTree: git("rev-parse", "HEAD^{tree}"),
		Image: "local:test", Tests: []string{"test_m.T.test_one"},
		Test: milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "-v"}, Format: "unittest", Timeout: 20 * time.Second}}
}

func TestWorkerWithoutServer(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"worker", "shadow"}, exitUsage, "--nats"},
		{[]string{"worker", "list"}, exitUsage, "--nats"},
		{[]string{"worker", "shadow", "--nats", "http://h"}, exitUsage, "nats://"},
		{[]string{"worker", "shadow", "--nats", "nats://secret@127.0.0.1:1", "--connect-timeout", "500ms"}, exitFailed, "127.0.0.1:1"},
		{[]string{"worker", "shadow", "--nats", "nats://127.0.0.1:1", "--slots", "0"}, exitUsage, "slots"},
	} {
		out := &lockedBuffer{}
		root := newRootCommand()
		root.SetOut(out)
		root.SetErr(out)
		if code := run(t.Context(), root, c.args); code != c.code || !strings.Contains(out.String(), c.says) || strings.Contains(out.String(), "secret") {
			t.Errorf("%v: exit code %d, %s", c.args, code, out)
		}
	}
}
