package envtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// testEscapeLinks has the host follow links that a command made: none may lead to a file of the host, however it is asked for.
func (c Confined) testEscapeLinks(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	must(t, "secret", os.WriteFile(secret, []byte(swordfish), 0o666))
	s, err := c.env(t).Create(ctx, env.Spec{Base: MakeBase(t)})
	must(t, "Create", err)
	shell(t, s, env.Limits{}, `ln -s "$1" file; ln -s "$2" dir2; ln -s / root; ln -s ../../../../../../../../../.. up; ln -s /proc/self/root self; ln -s loop loop
		rm -r pkg; ln -s "$2" pkg; rm README.md; ln -s "$1" README.md`, secret, dir)
	for _, p := range []string{"file", "dir2/secret", "root" + secret, "up" + secret, "self" + secret, "pkg/secret", "README.md", "loop"} {
		if data, _, err := s.ReadFile(ctx, p); err == nil {
			t.Errorf("ReadFile %s: %q", p, data)
		}
		if err := s.WriteFile(ctx, p, []byte("overwritten"), 0); err == nil {
			t.Errorf("WriteFile %s succeeded", p)
		}
	}
	for _, p := range []string{"dir2/new", "root" + dir + "/new", "pkg/new", "up" + dir + "/new"} {
		if err := s.WriteFile(ctx, p, []byte("x"), 0); err == nil {
			t.Errorf("WriteFile %s succeeded", p)
		}
		if err := s.Symlink(ctx, "x", p); err == nil {
			t.Errorf("Symlink %s succeeded", p)
		}
	}
	for _, p := range []string{"dir2/secret", "root" + secret, "pkg/secret"} {
		if err := s.Remove(ctx, p); err == nil {
			t.Errorf("Remove %s succeeded", p)
		}
	}
	for _, root := range []string{".", "dir2", "pkg", "up"} {
		_ = s.Walk(ctx, root, func(f env.FileInfo) error { // what it may not enter it refuses
			if filepath.Base(f.Path) == "secret" {
				t.Errorf("Walk of %s finds %s", root, f.Path)
			}
			return nil
		})
	}
	changes, err := s.Changes(ctx)
	must(t, "Changes", err)
	for _, ch := range changes {
		if string(ch.Data) == swordfish || ch.Mode == 0o100644 {
			t.Errorf("a change holds what a link leads to: %s %o %q", ch.Path, ch.Mode, ch.Data)
		}
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != swordfish {
		t.Errorf("the host's file: %q %v", data, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the host's folder: %v %v", left, err)
	}
}

// testSpecialFiles checks that nothing a task leaves in the workspace makes the host hang or look elsewhere.
func (c Confined) testSpecialFiles(t *testing.T) {
	s, err := c.env(t).Create(ctx, env.Spec{Base: MakeBase(t)})
	must(t, "Create", err)
	shell(t, s, env.Limits{}, `mkfifo pipe; rm README.md; mkfifo README.md; rm -r dir; mkfifo dir; ln -s pipe topipe
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'`)
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
		ch, err := s.Changes(ctx)
		if err != nil || len(ch) != 4 || !ch[0].Deleted {
			t.Errorf("Changes: %+v %v", ch, err)
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the host hangs on a special file")
	}
	must(t, "Reset", s.Reset(ctx))
}

// testSwappedLinks lets a command swap a directory for a link to /etc while the host works below it.
func (c Confined) testSwappedLinks(t *testing.T) {
	s, err := c.env(t).Create(ctx, env.Spec{Base: MakeBase(t)})
	must(t, "Create", err)
	p, err := s.Start(ctx, env.Command{Argv: []string{"python3", "-c", `
import os
os.mkdir("real"); open("real/passwd", "w").write("mine"); os.symlink("/etc", "evil"); os.rename("real", "d")
print("ready", flush=True)
while True:
    os.rename("d", "real"); os.rename("evil", "d"); os.rename("d", "evil"); os.rename("real", "d")
`}})
	must(t, "Start", err)
	_, err = fmt.Fscanln(p.Stdout, new(string))
	must(t, "the swapping command", err)
	good := 0
	for begin := time.Now(); time.Since(begin) < time.Second; {
		data, _, err := s.ReadFile(ctx, "d/passwd")
		if err == nil && string(data) != "mine" {
			t.Fatalf("read the host's file: %q", data)
		}
		if err == nil {
			good++
		}
		if err := s.WriteFile(ctx, "d/passwd", []byte("mine"), 0); err != nil && milepost.KindOf(err) == milepost.KindInternal {
			t.Fatal(err)
		}
	}
	if good == 0 {
		t.Error("no read came through between two swaps")
	}
	p.Kill()
	_, err = p.Wait()
	must(t, "Wait", err)
}
