package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/shadow"
)

// lethal is a runner for a worker that must not run anything.
type lethal struct{ t *testing.T }

func (l lethal) Run(context.Context, *milepost.Task, string, []milepost.TreeChange) (shadow.Outcome, error) {
	l.t.Error("a request that kills its workers was run")
	return shadow.Outcome{}, nil
}

// command runs milepost in process and returns its exit code and what it printed.
func command(t *testing.T, args ...string) (int, string) {
	t.Helper()
	out := &lockedBuffer{}
	root := newRootCommand()
	root.SetOut(out)
	root.SetErr(out)
	return run(t.Context(), root, args), out.String()
}

func TestWorkerDeadCommands(t *testing.T) {
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server := shadow.DefaultServer()
	server.Dir, server.Listen = t.TempDir(), true
	srv, err := shadow.StartServer(server)
	ok(err)
	defer srv.Close()
	url := srv.URL()
	if code, out := command(t, "worker", "dead", "list", "--nats", url); code != exitFailed || !strings.Contains(out, "no run or worker") {
		t.Errorf("a server that nobody used: exit code %d, %s", code, out)
	}
	nc, err := srv.Connect("test")
	ok(err)
	defer nc.Close()
	blobs, err := repo.NewBlobs(t.TempDir())
	ok(err)
	cfg := shadow.DefaultProber()
	cfg.Run, cfg.Epoch = "r", 1
	p, err := shadow.NewProber(t.Context(), nc, cfg, blobs)
	ok(err)
	defer func() { ok(p.Close()) }()

	// Two requests that two workers took and were never heard of again.
	task := &milepost.Task{ID: "t", Kind: milepost.BugRepair, BaseTree: fmt.Sprintf("%040x", 1), Image: "local:test", Tests: []string{"a"},
		Test: milepost.TestCommand{Argv: []string{"true"}, Format: "unittest"}}
	ids := []string{"e1/0", "e2/0"}
	for i, id := range ids {
		ok(p.Publish(t.Context(), milepost.ProbeRequest{ID: id, Kind: milepost.ProbeStep, Task: task, Episode: id[:2], Tree: fmt.Sprintf("%040x", 2+i),
			Delta: []milepost.TreeChange{{Path: "gone.py", Deleted: true}}}))
	}
	js, err := jetstream.New(nc)
	ok(err)
	q, err := js.Consumer(t.Context(), "milepost-probes", "v1-step")
	ok(err)
	var taken []jetstream.Msg
	for range ids {
		m, err := q.Next(jetstream.FetchMaxWait(10 * time.Second))
		ok(err)
		taken = append(taken, m)
	}
	for _, m := range taken {
		ok(m.Nak())
	}
	wc := shadow.DefaultWorker()
	wc.MaxDeliveries, wc.Name, wc.Poll = 1, "w1", 50*time.Millisecond
	w, err := shadow.NewWorker(t.Context(), nc, wc, lethal{t}, blobs)
	ok(err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	p.Await(t.Context(), ids, 30*time.Second)
	stop()
	ok(<-done)

	code, out := command(t, "worker", "dead", "list", "--nats", url)
	if code != exitDone || !strings.Contains(out, "e1/0") || !strings.Contains(out, "e2/0") || !strings.Contains(out, "handed out") {
		t.Errorf("list: exit code %d, %s", code, out)
	}
	code, out = command(t, "worker", "dead", "list", "--nats", url, "--id", "e2", "--run", "r", "--kind", "step", "--since", "1h", "--reason", "handed", "--json")
	var list []shadow.DeadLetter
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitDone || len(list) != 1 || list[0].ID != "e2/0" {
		t.Fatalf("list --json: exit code %d, %v, %s", code, err, out)
	}
	seq := fmt.Sprint(list[0].Seq)
	if code, out = command(t, "worker", "dead", "show", seq, "--nats", url); code != exitDone || !strings.Contains(out, "gone.py (deleted)") || !strings.Contains(out, "by w1") {
		t.Errorf("show: exit code %d, %s", code, out)
	}
	if code, out = command(t, "worker", "dead", "replay", seq, "--nats", url); code != exitDone || !strings.Contains(out, "replayed "+seq+": e2/0 of run r") {
		t.Errorf("replay: exit code %d, %s", code, out)
	}
	if code, out = command(t, "worker", "dead", "replay", "--all", "--id", "e1", "--nats", url); code != exitDone || !strings.Contains(out, "e1/0") || strings.Contains(out, "e2/0") {
		t.Errorf("replay --all: exit code %d, %s", code, out)
	}
	if code, out = command(t, "worker", "dead", "list", "--nats", url, "--json"); code != exitDone || !bytes.Equal(bytes.TrimSpace([]byte(out)), []byte("[]")) {
		t.Errorf("afterwards: exit code %d, %s", code, out)
	}
	if code, out = command(t, "worker", "dead", "replay", seq, "999", "--nats", url); code != exitFailed || !strings.Contains(out, seq) || !strings.Contains(out, "999") {
		t.Errorf("replay of what is gone: exit code %d, %s", code, out)
	}
	for _, bad := range [][]string{{"replay"}, {"replay", "--all", "1"}, {"replay", "1", "--id", "x"}, {"replay", "one"}, {"show"}, {"show", "0"},
		{"list", "--kind", "other"}} {
		if code, out := command(t, append(append([]string{"worker", "dead"}, bad...), "--nats", url)...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", bad, code, out)
		}
	}
}

// SIGTERM, as a cluster's scheduler sends it, in the middle of a probe: the worker takes no more, finishes, and leaves nothing.
func TestWorkerDrainsOnSigterm(t *testing.T) {
	needSandbox(t)
	dir := t.TempDir()
	server := shadow.DefaultServer()
	server.Dir, server.Listen = filepath.Join(dir, "nats"), true
	srv, err := shadow.StartServer(server)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	nc, err := srv.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	bases, err := repo.NewStore(filepath.Join(dir, "bases"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := repo.NewBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := shadow.DefaultProber()
	cfg.Run, cfg.Epoch, cfg.Recheck = "r", 1, 0
	p, err := shadow.NewProber(t.Context(), nc, cfg, blobs, shadow.WithBases(bases))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	task := slowTask(t)
	mark := filepath.Base(dir)
	w := startProcess(t, mark, "worker", "shadow", "--nats", srv.URL(), "--slots", "1", "--name", "w1",
		"--dir", filepath.Join(dir, "worker"), "--set", "probes.worker.heartbeat=100ms", "--set", "probes.worker.drain_timeout=2m", "-c", "reference")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(p.Publish(t.Context(), milepost.ProbeRequest{ID: "e/0", Kind: milepost.ProbeVerdict, Task: task, Episode: "e", Tree: task.BaseTree}))
	w.until("probe at work", time.Minute, func() bool {
		workers, err := shadow.ListWorkers(t.Context(), nc, cfg.Streams.Prefix, 250*time.Millisecond)
		return err == nil && len(workers) == 1 && workers[0].Busy == 1
	})
	other := *task
	other.Image = "local:other"
	must(p.Publish(t.Context(), milepost.ProbeRequest{ID: "f/0", Kind: milepost.ProbeVerdict, Task: &other, Episode: "f", Tree: task.BaseTree}))
	w.terminate()
	if code := w.wait(3 * time.Minute); code != exitDone {
		t.Errorf("exit code %d: %s", code, w.out.String())
	}
	got := p.Await(t.Context(), []string{"e/0", "f/0"}, 5*time.Second)
	if !got["e/0"].Trusted || got["f/0"].Status != milepost.ProbeLate {
		t.Errorf("the probe in hand %+v, the next one %+v; the worker said: %s", got["e/0"], got["f/0"], w.out.String())
	}
	nothingLeft(t, mark, dir)
}
