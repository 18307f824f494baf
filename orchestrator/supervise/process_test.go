package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) Spec {
	return Spec{
		Name: "test", Argv: []string{"/bin/sh", "-c", script}, Log: filepath.Join(t.TempDir(), "logs", "out.log"),
		ReadyEvery: 5 * time.Millisecond, Grace: 200 * time.Millisecond,
	}
}

func begin(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop(context.Background()); <-p.Done() })
	return p
}

// waitFor polls until the log of s holds text.
func waitFor(t *testing.T, s Spec, text string) string {
	t.Helper()
	for range 500 {
		if data, _ := os.ReadFile(s.Log); strings.Contains(string(data), text) {
			return string(data)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the log never said %q", text)
	return ""
}

func TestExitCarriesReasonAndLastLines(t *testing.T) {
	s := shell(t, `echo "$GREETING"; for i in $(seq 100); do echo line $i; done; exit 3`)
	s.Env = map[string]string{"GREETING": "hello"}
	if err := os.MkdirAll(filepath.Dir(s.Log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Log, []byte("from an earlier start\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := begin(t, s)
	exit := p.Exit()
	lines := strings.Split(exit.Tail, "\n")
	if exit.Reason != "exit status 3" || exit.Asked || len(lines) != tailLines || lines[len(lines)-1] != "line 100" {
		t.Errorf("exit %+v", exit)
	}
	data, err := os.ReadFile(s.Log)
	if err != nil || !strings.HasPrefix(string(data), "from an earlier start\nhello\n") {
		t.Errorf("log %q, %v: it must be appended to", data, err)
	}
	short := begin(t, Spec{Name: "short", Argv: []string{"/bin/sh", "-c", "echo new"}, Log: s.Log})
	if tail := short.Exit().Tail; tail != "new" {
		t.Errorf("last lines %q hold those of an earlier start", tail)
	}
}

func TestWaitReady(t *testing.T) {
	asked := 0
	s := shell(t, "sleep 100")
	s.Ready = func(context.Context) error {
		if asked++; asked < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	if err := begin(t, s).WaitReady(t.Context()); err != nil || asked != 3 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	never := func(context.Context) error { return errors.New("connection refused") }
	s.Ready, s.ReadyTimeout = never, 30*time.Millisecond
	if err := begin(t, s).WaitReady(t.Context()); milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "not ready after 30ms: connection refused") {
		t.Errorf("never ready: %v", err)
	}
	dies := shell(t, "echo out of memory; exit 1")
	dies.Ready = never
	if err := begin(t, dies).WaitReady(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 1; the last lines of its log:\nout of memory") {
		t.Errorf("died before it was ready: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.ReadyTimeout = time.Minute
	if err := begin(t, s).WaitReady(ctx); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("cancelled: %v", err)
	}
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	s := shell(t, `trap '' TERM; (trap '' TERM; echo child; while :; do sleep 1; done) & echo parent; while :; do sleep 1; done`)
	p := begin(t, s)
	waitFor(t, s, "child")
	waitFor(t, s, "parent")
	if pids, err := p.id.group(); err != nil || len(pids) < 2 {
		t.Fatalf("group %v, %v; want parent and child", pids, err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := p.Exit(); !exit.Asked || exit.Reason != "signal: killed" {
		t.Errorf("exit %+v, want killed after the grace", exit)
	}
	if pids, err := p.id.group(); err != nil || len(pids) != 0 {
		t.Errorf("left over: %v, %v", pids, err)
	}
	polite := begin(t, shell(t, "exec sleep 100"))
	if err := polite.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := polite.Exit(); exit.Reason != "signal: terminated" {
		t.Errorf("exit %+v, want terminated", exit)
	}
}

func TestStartIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	busy := shell(t, "true")
	busy.Ports = []string{l.Addr().String()}
	missing := shell(t, "true")
	missing.Argv[0] = "/no/such/program"
	model := vllm.DefaultServerConfig()
	model.Model = filepath.Join(t.TempDir(), "nowhere")
	if model, err = model.WithPort(); err != nil {
		t.Fatal(err)
	}
	server, err := VLLM("vllm-0", model, "/env", filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Spec
		kind milepost.Kind
		want string
	}{
		{busy, milepost.KindConflict, "port " + l.Addr().String() + " is in use"},
		{missing, milepost.KindNotFound, "/no/such/program"},
		{server, milepost.KindNotFound, "nowhere does not exist"},
		{Spec{Name: "empty"}, milepost.KindInvalid, "command is empty"},
	} {
		if _, err := Start(c.spec); milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s with %q", err, c.kind, c.want)
		}
	}
}

func TestAdopt(t *testing.T) {
	s := shell(t, "sleep 100")
	p := begin(t, s)
	adopted, err := Adopt(s, p.Identity())
	if err != nil {
		t.Fatal(err)
	}
	if err := adopted.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := adopted.Exit(); exit.Reason != "gone" || !exit.Asked {
		t.Errorf("exit %+v", exit)
	}
	if _, err := Adopt(s, p.Identity()); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("adopting a process that is gone: %v", err)
	}
}

func TestReapEndsOnlyItsOwn(t *testing.T) {
	// The leader is killed, its child lives on: an engine whose server died.
	s := shell(t, "sleep 101 & echo up; wait")
	p := begin(t, s)
	waitFor(t, s, "up")
	if err := syscall.Kill(p.id.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if pids, _ := p.id.group(); len(pids) != 1 {
		t.Fatalf("group %v, want the orphan", pids)
	}
	other := begin(t, shell(t, "sleep 102"))
	recycled := other.Identity()
	recycled.Start--
	elsewhere := other.Identity()
	elsewhere.Boot = "another boot"
	reaped, err := Reap(t.Context(), []Identity{p.Identity(), recycled, elsewhere, {Name: "init", PID: 1}, {}}, 100*time.Millisecond)
	if err != nil || !slices.Equal(reaped, []Identity{p.Identity()}) {
		t.Errorf("reaped %v, %v; want only the orphan's group", reaped, err)
	}
	if pids, _ := p.id.group(); len(pids) != 0 {
		t.Errorf("left over: %v", pids)
	}
	if !other.Identity().Alive() {
		t.Error("a process with another start time was ended")
	}
}

func TestParseStat(t *testing.T) {
	rest := "S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 1 2"
	for _, name := range []string{"sh", "VLLM::Engine)Co re", "a b (c"} {
		got, err := parseStat(fmt.Sprintf("42 (%s) %s", name, rest))
		if want := (stat{state: 'S', group: 77, start: 123456}); err != nil || got != want {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "42 sh S", "42 (sh) S 1"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
