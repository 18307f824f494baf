package envtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

func (s *suite) testCreate(t *testing.T) {
	e := env.New(s.New(t))
	base := MakeBase(t)
	for name, c := range map[string]struct {
		spec env.Spec
		kind milepost.Kind
	}{
		"missing base":     {env.Spec{Base: base + "/nothing"}, milepost.KindNotFound},
		"base a file":      {env.Spec{Base: base + "/README.md"}, milepost.KindInvalid},
		"relative base":    {env.Spec{Base: "x"}, milepost.KindInvalid},
		"negative limit":   {env.Spec{Base: base, Limits: env.Limits{Procs: -1}}, milepost.KindInvalid},
		"bad variable":     {env.Spec{Base: base, Env: map[string]string{"A=B": ""}}, milepost.KindInvalid},
		"mount over /usr":  {env.Spec{Mounts: []env.Mount{{Host: base, Path: "/usr/x"}}}, milepost.KindInvalid},
		"mount of nowhere": {env.Spec{Mounts: []env.Mount{{Host: "x", Path: "/mnt/x"}}}, milepost.KindInvalid},
		"mount on root":    {env.Spec{Mounts: []env.Mount{{Host: base, Path: "/"}}}, milepost.KindInvalid},
	} {
		_, err := e.Create(ctx, c.spec)
		wantKind(t, name, err, c.kind)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err := e.Create(done, env.Spec{})
	wantKind(t, "canceled", err, milepost.KindCanceled)
	sb, err := e.Create(ctx, env.Spec{})
	must(t, "Create without a base", err)
	must(t, "WriteFile", sb.WriteFile(ctx, "x", []byte("1"), 0))
	s.wantChanges(t, sb, "100644 x 1")
	if moved, err := sb.GitMoved(ctx); moved || err != nil {
		t.Errorf("GitMoved without a base: %v %v", moved, err)
	}
	must(t, "Env.Close, with a sandbox open", e.Close())
	wantKind(t, "use after Env.Close", sb.WriteFile(ctx, "x", nil, 0), milepost.KindConflict)
	_, err = e.Create(ctx, env.Spec{})
	wantKind(t, "Create after Env.Close", err, milepost.KindConflict)
}

func (s *suite) testExec(t *testing.T) {
	sb := s.open(t)
	if r := s.run(t, sb, "echo", "hello 'world' $x"); string(r.Stdout) != "hello 'world' $x\n" || r.ExitCode != 0 || len(r.Stderr) != 0 || r.Duration <= 0 {
		t.Errorf("echo: %+v", r)
	}
	if r := s.run(t, sb, "fail", "42", "oops"); string(r.Stderr) != "oops" || r.ExitCode != 42 || len(r.Stdout) != 0 {
		t.Errorf("fail: %+v", r)
	}
	r, err := sb.Exec(ctx, env.Command{Argv: s.Argv("cat"), Stdin: []byte(strings.Repeat("input\n", 50000))})
	if err != nil || len(r.Stdout) != 300000 {
		t.Errorf("cat: %d bytes, %v", len(r.Stdout), err)
	}
	r, err = sb.Exec(ctx, env.Command{Argv: s.Argv("echo", "deaf"), Stdin: make([]byte, 1<<20)})
	if err != nil || string(r.Stdout) != "deaf\n" {
		t.Errorf("a command that does not read its input: %+v %v", r, err)
	}
	r, err = sb.Exec(ctx, env.Command{Argv: s.Argv("read", "deep.py"), Dir: "pkg/sub"})
	if err != nil || string(r.Stdout) != "y = 2\n" {
		t.Errorf("Dir: %+v %v", r, err)
	}
	for name, want := range map[string]string{"FROM_SPEC": "spec", "BOTH": "command", "FROM_COMMAND": "a b=c'\"\n"} {
		r, err := sb.Exec(ctx, env.Command{Argv: s.Argv("env", name), Env: map[string]string{"BOTH": "command", "FROM_COMMAND": "a b=c'\"\n"}})
		if err != nil || string(r.Stdout) != want {
			t.Errorf("env %s: %q %v, want %q", name, r.Stdout, err, want)
		}
	}
	must(t, "WriteFile", sb.WriteFile(ctx, "from/host", []byte("host"), 0))
	if r := s.run(t, sb, "read", "from/host"); string(r.Stdout) != "host" {
		t.Errorf("a command does not see what was written: %+v", r)
	}
	s.run(t, sb, "write", "from-command", "cmd")
	if data, _, err := sb.ReadFile(ctx, "from-command"); err != nil || string(data) != "cmd" {
		t.Errorf("what a command wrote: %q %v", data, err)
	}
	if s.Missing {
		r, err := sb.Exec(ctx, env.Command{Argv: []string{"no-such-program"}})
		if err != nil || r.ExitCode != 127 {
			t.Errorf("a program that is not there: %+v %v", r, err)
		}
	}
}

func (s *suite) testExecInvalid(t *testing.T) {
	sb := s.open(t)
	for name, c := range map[string]struct {
		cmd  env.Command
		kind milepost.Kind
	}{
		"no argv":        {env.Command{}, milepost.KindInvalid},
		"empty program":  {env.Command{Argv: []string{""}}, milepost.KindInvalid},
		"NUL":            {env.Command{Argv: []string{"a\x00"}}, milepost.KindInvalid},
		"huge argument":  {env.Command{Argv: []string{"echo", strings.Repeat("x", 1<<20)}}, milepost.KindInvalid},
		"many arguments": {env.Command{Argv: make([]string, 20000)}, milepost.KindInvalid},
		"negative limit": {env.Command{Argv: []string{"echo"}, Limits: env.Limits{Wall: -1}}, milepost.KindInvalid},
		"bad variable":   {env.Command{Argv: []string{"echo"}, Env: map[string]string{"": "x"}}, milepost.KindInvalid},
		"missing dir":    {env.Command{Argv: s.Argv("echo", "x"), Dir: "nothing"}, milepost.KindNotFound},
		"dir a file":     {env.Command{Argv: s.Argv("echo", "x"), Dir: "README.md"}, milepost.KindInvalid},
	} {
		if name == "many arguments" {
			c.cmd.Argv[0] = "echo"
		}
		_, err := sb.Exec(ctx, c.cmd)
		wantKind(t, "Exec, "+name, err, c.kind)
		_, err = sb.Start(ctx, c.cmd)
		wantKind(t, "Start, "+name, err, c.kind)
	}
	_, err := sb.Start(ctx, env.Command{Argv: s.Argv("cat"), Stdin: []byte("x")})
	wantKind(t, "Start with stdin", err, milepost.KindInvalid)
}

func (s *suite) testOutput(t *testing.T) {
	sb := s.open(t)
	for _, c := range []struct {
		n, limit int64
		cut      bool
	}{{1000, 1000, false}, {1001, 1000, true}, {5 << 20, 1000, true}} {
		r, err := sb.Exec(ctx, env.Command{Argv: s.Argv("spam", fmt.Sprint(c.n)), Limits: env.Limits{Output: c.limit}})
		if err != nil || r.ExitCode != 0 || int64(len(r.Stdout)) != c.limit || r.StdoutTruncated != c.cut || r.StderrTruncated {
			t.Errorf("%d bytes with limit %d: exit %d, %d bytes, truncated %v %v, %v", c.n, c.limit, r.ExitCode, len(r.Stdout),
				r.StdoutTruncated, r.StderrTruncated, err)
		}
	}
	r, err := sb.Exec(ctx, env.Command{Argv: s.Argv("fail", "1", "0123456789"), Limits: env.Limits{Output: 4}})
	if err != nil || string(r.Stderr) != "0123" || !r.StderrTruncated || r.StdoutTruncated {
		t.Errorf("stderr: %+v %v", r, err)
	}
}

// soon is a bound for what happens at once, on a busy machine.
const soon = 20 * time.Second

func (s *suite) testWallTime(t *testing.T) {
	sb := s.open(t)
	begin := time.Now()
	r, err := sb.Exec(ctx, env.Command{Argv: s.Argv("hang"), Limits: env.Limits{Wall: 300 * time.Millisecond}})
	took := time.Since(begin)
	if err != nil || !r.TimedOut || r.ExitCode != 137 || r.OutOfMemory {
		t.Errorf("hang: %+v %v", r, err)
	}
	if took < 300*time.Millisecond || took > soon {
		t.Errorf("hang took %v", took)
	}
	if r := s.run(t, sb, "echo", "after"); string(r.Stdout) != "after\n" || r.TimedOut {
		t.Errorf("after a time-out: %+v", r)
	}
}

func (s *suite) testCancel(t *testing.T) {
	sb := s.open(t)
	c, cancel := context.WithCancel(ctx)
	time.AfterFunc(200*time.Millisecond, cancel)
	begin := time.Now()
	_, err := sb.Exec(c, env.Command{Argv: s.Argv("hang")})
	wantKind(t, "Exec canceled", err, milepost.KindCanceled)
	if time.Since(begin) > soon {
		t.Errorf("the cancelled command took %v", time.Since(begin))
	}
	c, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = sb.Exec(c, env.Command{Argv: s.Argv("hang")})
	wantKind(t, "Exec past the caller's deadline", err, milepost.KindCanceled)
	_, err = sb.Exec(c, env.Command{Argv: s.Argv("echo", "x")})
	wantKind(t, "Exec under a dead context", err, milepost.KindCanceled)
}

func (s *suite) testConcurrent(t *testing.T) {
	sb := s.open(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprintf("c%d", i)
			r, err := sb.Exec(ctx, env.Command{Argv: s.Argv("write", name, name)})
			if err != nil || r.ExitCode != 0 {
				t.Errorf("%s: %+v %v", name, r, err)
			}
			if err := sb.WriteFile(ctx, "h"+name, []byte(name), 0); err != nil {
				t.Error(err)
			}
			if _, err := sb.Changes(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if c, err := sb.Changes(ctx); err != nil || len(c) != 16 {
		t.Errorf("%d changes, want 16: %q %v", len(c), describeChanges(c), err)
	}
}

func (s *suite) testStart(t *testing.T) {
	sb := s.open(t)
	p, err := sb.Start(ctx, env.Command{Argv: s.Argv("serve")})
	must(t, "Start", err)
	out := bufio.NewReader(p.Stdout)
	for i := range 3 {
		_, err := fmt.Fprintf(p.Stdin, "line %d\n", i)
		must(t, "write", err)
		if line, err := out.ReadString('\n'); err != nil || line != fmt.Sprintf("got line %d\n", i) {
			t.Errorf("answer %d: %q %v", i, line, err)
		}
		if r := s.run(t, sb, "echo", "beside"); string(r.Stdout) != "beside\n" {
			t.Errorf("Exec beside a process: %+v", r)
		}
	}
	must(t, "close stdin", p.Stdin.Close())
	if rest, err := io.ReadAll(out); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q %v", rest, err)
	}
	for range 2 {
		if r, err := p.Wait(); err != nil || r.ExitCode != 5 || r.TimedOut {
			t.Errorf("Wait: %+v %v", r, err)
		}
	}
	p.Kill() // has no effect on what is gone

	p, err = sb.Start(ctx, env.Command{Argv: s.Argv("hang")})
	must(t, "Start", err)
	p.Kill()
	p.Kill()
	if r, err := p.Wait(); err != nil || r.ExitCode != 137 || r.TimedOut {
		t.Errorf("killed: %+v %v", r, err)
	}
	p, err = sb.Start(ctx, env.Command{Argv: s.Argv("hang"), Limits: env.Limits{Wall: 200 * time.Millisecond}})
	must(t, "Start", err)
	if r, err := p.Wait(); err != nil || !r.TimedOut {
		t.Errorf("past its wall time: %+v %v", r, err)
	}
}

// testCloseInside closes a sandbox while a walk of it uses it: no operation inside another may wait for Close.
func (s *suite) testCloseInside(t *testing.T) {
	sb := s.open(t)
	done := make(chan error, 1)
	err := sb.Walk(ctx, "", func(fi env.FileInfo) error {
		if fi.Path != "README.md" {
			return nil
		}
		go func() { done <- sb.Close(ctx) }()
		for begin := time.Now(); time.Since(begin) < soon; time.Sleep(time.Millisecond) {
			if _, _, err := sb.ReadFile(ctx, "README.md"); err != nil {
				return err
			}
		}
		return nil
	})
	wantKind(t, "ReadFile inside a walk, after Close was called", err, milepost.KindConflict)
	must(t, "Close", <-done)
}

func (s *suite) testClosed(t *testing.T) {
	sb := s.open(t)
	p, err := sb.Start(ctx, env.Command{Argv: s.Argv("hang")})
	must(t, "Start", err)
	hung := make(chan error, 1)
	go func() {
		_, err := sb.Exec(ctx, env.Command{Argv: s.Argv("hang")})
		hung <- err
	}()
	time.Sleep(100 * time.Millisecond)
	must(t, "Close", sb.Close(ctx))
	select {
	case err := <-hung:
		if k := milepost.KindOf(err); k != milepost.KindCanceled && k != milepost.KindConflict {
			t.Errorf("Exec under way at Close: %v", err)
		}
	case <-time.After(soon):
		t.Fatal("Close did not end the command under way")
	}
	if r, err := p.Wait(); err != nil || r.ExitCode != 137 {
		t.Errorf("process at Close: %+v %v", r, err)
	}
	must(t, "second Close", sb.Close(ctx))
	for name, f := range map[string]func() error{
		"Exec":       func() error { _, err := sb.Exec(ctx, env.Command{Argv: []string{"x"}}); return err },
		"Start":      func() error { _, err := sb.Start(ctx, env.Command{Argv: []string{"x"}}); return err },
		"ReadFile":   func() error { _, _, err := sb.ReadFile(ctx, "README.md"); return err },
		"WriteFile":  func() error { return sb.WriteFile(ctx, "x", nil, 0) },
		"Remove":     func() error { return sb.Remove(ctx, "x") },
		"Symlink":    func() error { return sb.Symlink(ctx, "x", "y") },
		"Stat":       func() error { _, err := sb.Stat(ctx, "x"); return err },
		"Walk":       func() error { return sb.Walk(ctx, "", func(env.FileInfo) error { return nil }) },
		"Changes":    func() error { _, err := sb.Changes(ctx); return err },
		"Snapshot":   func() error { _, err := sb.Snapshot(ctx); return err },
		"GitMoved":   func() error { _, err := sb.GitMoved(ctx); return err },
		"RestoreGit": func() error { return sb.RestoreGit(ctx) },
		"Reset":      func() error { return sb.Reset(ctx) },
	} {
		wantKind(t, name+" after Close", f(), milepost.KindConflict)
	}
}
