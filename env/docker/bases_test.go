package docker_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
)

// imageWith makes an image that has the files of a script's doing, and removes it at the end.
func imageWith(t testing.TB, host, script string) string {
	t.Helper()
	name := "milepost-testbed/" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + ":test"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+dockertest.Image+"\nCOPY make /make\nRUN bash /make && rm /make\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "make"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command("docker", append([]string{"-H", host}, args...)...)
		cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
		return cmd.CombinedOutput()
	}
	if out, err := run("build", "--network", "none", "-q", "-t", name, dir); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _, _ = run("rmi", name) })
	return name
}

const testbed = `mkdir /testbed && cd /testbed && git init -q && mkdir -p pkg build empty && echo 'x = 1' >pkg/a.py && echo other >pkg/b.py ` +
	`&& printf '#!/bin/sh\n' >run && chmod 755 run && ln -s pkg/a.py link && echo product >build/p.so && echo build/ >.gitignore ` +
	`&& git add -A && git -c user.name=u -c user.email=u@u commit -qm base && echo secret >later && git add -A && git -c user.name=u -c user.email=u@u commit -qm later && git reset -q --hard HEAD~1 && chmod 600 pkg/b.py`

func TestWorkspaceOfAnImage(t *testing.T) {
	cfg := dockertest.Config(t)
	image := imageWith(t, cfg.Hosts[0], testbed)
	d, err := docker.New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(d)
	defer e.Close()
	ctx := context.Background()
	sh := func(s *env.Sandbox, script string) string {
		t.Helper()
		r, err := s.Exec(ctx, env.Command{Argv: []string{"bash", "-c", script}})
		if err != nil || r.ExitCode != 0 {
			t.Fatalf("%s: %+v %v %s", script, r.ExitCode, err, r.Stderr)
		}
		return strings.TrimSpace(string(r.Stdout))
	}

	raw, err := e.Create(ctx, env.Spec{Name: "raw", Image: image, Workdir: "/testbed"})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(raw, "pwd; cat build/p.so pkg/b.py; readlink link; git log --oneline --all --reflog | wc -l; git status --porcelain"); got != "/testbed\nproduct\nother\npkg/a.py\n2" {
		t.Errorf("the image's repository: %q", got)
	}
	before, err := raw.Tree(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sh(raw, "echo 'x = 2' >pkg/a.py; mkdir __pycache__; echo >__pycache__/c.pyc")
	changes, err := raw.Changes(ctx)
	if err != nil || len(changes) != 1 || changes[0].Path != "pkg/a.py" {
		t.Errorf("changes: %+v %v", changes, err)
	}
	after, err := raw.Tree(ctx)
	if err != nil || after == before {
		t.Errorf("the tree of a changed workspace: %s, before %s, %v", after, before, err)
	}
	var archive bytes.Buffer
	if err := raw.Archive(ctx, &archive); err != nil || bytes.Contains(archive.Bytes(), []byte(".git/")) || bytes.Contains(archive.Bytes(), []byte("pyc")) {
		t.Errorf("the archive: %v", err)
	}
	if err := raw.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if back, err := raw.Tree(ctx); err != nil || back != before {
		t.Errorf("after a reset: %s %v", back, err)
	}

	// A base that the image has but for one file, which another content stands for, and one file more.
	base := t.TempDir()
	for name, text := range map[string]string{"pkg/a.py": "x = 7\n", "pkg/b.py": "other\n", "build/p.so": "product\n", "new/deep/file": "new\n", ".git/HEAD": "ref: refs/heads/main\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := e.Create(ctx, env.Spec{Name: "base", Image: image, Workdir: "/testbed", Base: base, Hidden: []string{"/usr/lib/git-core", "/nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(s, "find . -type f -o -type l | sort; cat pkg/a.py"); got != "./.git/HEAD\n./build/p.so\n./new/deep/file\n./pkg/a.py\n./pkg/b.py\nx = 7" {
		t.Errorf("a base over the image's repository: %q", got)
	}
	if got := sh(s, "grep -rl -e secret -e 'x = 1' / --include=later --include=a.py --include=HEAD 2>/dev/null | grep -v ^/proc; ls /usr/lib/git-core; true"); got != "" {
		t.Errorf("a command sees what the base does not have, or a hidden folder: %q", got)
	}
	if changes, err := s.Changes(ctx); err != nil || len(changes) != 0 {
		t.Errorf("changes of an untouched workspace: %+v %v", changes, err)
	}

	for name, c := range map[string]struct {
		spec env.Spec
		kind milepost.Kind
		want string
	}{
		"no such folder": {env.Spec{Name: "task-1", Image: image, Workdir: "/nothing"}, milepost.KindInvalid, "no files in /nothing"},
		"no such image":  {env.Spec{Name: "task-1", Image: "milepost/absent:1", Workdir: "/testbed"}, milepost.KindNotFound, "task-1, image milepost/absent:1"},
		"system folder":  {env.Spec{Name: "task-1", Image: image, Workdir: "/usr/src"}, milepost.KindInvalid, "directory of the system"},
		"no image":       {env.Spec{Name: "task-1", Workdir: "/testbed"}, milepost.KindInvalid, "no image is named"},
	} {
		if _, err := e.Create(ctx, c.spec); milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s with %q", name, err, c.kind, c.want)
		}
	}
}

// BenchmarkImageOf200MB makes sandboxes on a repository of 200 MB in 10,000 files: copied inside the container from the
// image, and unpacked over the connection as bases on this machine are.
func BenchmarkImageOf200MB(b *testing.B) {
	cfg := dockertest.Config(b)
	image := imageWith(b, cfg.Hosts[0], `mkdir -p /testbed && cd /testbed && python3 -c "import os
for i in range(100):
    os.mkdir(str(i))
    for j in range(100): open('%d/%d' % (i, j), 'wb').write(os.urandom(20480))"`)
	d, err := docker.New(context.Background(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	e := env.New(d)
	defer e.Close()
	create := func(spec env.Spec) *env.Sandbox {
		s, err := e.Create(context.Background(), spec)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	base := b.TempDir()
	begin := time.Now()
	s := create(env.Spec{Name: "first", Image: image, Workdir: "/testbed"})
	b.Logf("the first sandbox, which fills the volume: %s", time.Since(begin))
	var archive bytes.Buffer
	if err := s.Archive(context.Background(), &archive); err != nil {
		b.Fatal(err)
	}
	tar := exec.Command("tar", "-x", "-C", base)
	tar.Stdin = &archive
	if out, err := tar.CombinedOutput(); err != nil {
		b.Fatalf("%v %s", err, out)
	}
	for name, spec := range map[string]env.Spec{
		"copied":   {Image: image, Workdir: "/testbed"},
		"base":     {Image: image, Workdir: "/testbed", Base: base},
		"unpacked": {Image: image, Base: base},
	} {
		b.Run(name, func(b *testing.B) {
			if err := create(spec).Close(context.Background()); err != nil { // fills what is filled once
				b.Fatal(err)
			}
			for b.Loop() {
				s := create(spec)
				b.StopTimer()
				if err := s.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
