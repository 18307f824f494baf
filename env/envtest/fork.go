package envtest

import (
	"context"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// fork makes a sandbox from the present state of sb, closed with the test.
func (s *suite) fork(t *testing.T, sb *env.Sandbox) *env.Sandbox {
	t.Helper()
	snapshot, err := sb.Snapshot(ctx)
	must(t, "Snapshot", err)
	return s.forkFrom(t, snapshot)
}

func (s *suite) forkFrom(t *testing.T, snapshot *env.Snapshot) *env.Sandbox {
	t.Helper()
	f, err := s.shared.Fork(ctx, snapshot, "fork of "+t.Name())
	must(t, "Fork", err)
	t.Cleanup(func() {
		if err := f.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return f
}

func (s *suite) testFork(t *testing.T) {
	for _, c := range changeCases {
		if len(c.want) == 0 && c.name != "nothing" && c.name != ".git" && c.name != "caches" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			sb := s.open(t)
			c.do(editor{t, sb})
			s.wantChanges(t, s.fork(t, sb), c.want...)
		})
	}
	t.Run("apart", s.testForkApart)
	t.Run("dead context", func(t *testing.T) {
		sb := s.open(t)
		snapshot, err := sb.Snapshot(ctx)
		must(t, "Snapshot", err)
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, err = s.shared.Fork(done, snapshot, "")
		wantKind(t, "Fork under a dead context", err, milepost.KindCanceled)
		_, err = sb.Snapshot(done)
		wantKind(t, "Snapshot under a dead context", err, milepost.KindCanceled)
	})
}

// testForkApart checks that forks share nothing with each other and the sandbox they come from, which may be gone.
func (s *suite) testForkApart(t *testing.T) {
	sb := s.open(t)
	e := editor{t, sb}
	e.write("README.md", "one\n", 0)
	e.write(".git/HEAD", "ref: refs/heads/next\n", 0)
	e.write("pkg/__pycache__/c.pyc", "cached", 0)
	e.write("bin/tool", "#!/bin/sh\n", 0o755)
	first, err := sb.Snapshot(ctx)
	must(t, "Snapshot", err)
	if want := int64(len("one\nref: refs/heads/next\ncached#!/bin/sh\n")); first.Size() != want {
		t.Errorf("the snapshot holds %d bytes, want %d", first.Size(), want)
	}
	e.write("README.md", "two\n", 0)
	e.remove("dir")
	second := s.fork(t, sb)
	must(t, "Close", sb.Close(ctx))

	fork := s.forkFrom(t, first)
	s.wantChanges(t, fork, "100644 README.md one\n", "100755 bin/tool #!/bin/sh\n")
	if moved, err := fork.GitMoved(ctx); !moved || err != nil {
		t.Errorf("the fork's .git: moved %v, %v", moved, err)
	}
	if data, _, err := fork.ReadFile(ctx, "pkg/__pycache__/c.pyc"); err != nil || string(data) != "cached" {
		t.Errorf("the fork's cache: %q %v", data, err)
	}
	if r := s.run(t, fork, "read", "README.md"); string(r.Stdout) != "one\n" {
		t.Errorf("a command in the fork: %+v", r)
	}
	s.run(t, fork, "write", "README.md", "three")
	s.wantChanges(t, second, "100644 README.md two\n", "100755 bin/tool #!/bin/sh\n", "D dir/one.txt", "D dir/two.txt")
	s.wantChanges(t, s.fork(t, fork), "100644 README.md three", "100755 bin/tool #!/bin/sh\n")
	s.wantChanges(t, s.forkFrom(t, first), "100644 README.md one\n", "100755 bin/tool #!/bin/sh\n")
	must(t, "Reset", fork.Reset(ctx))
	s.wantChanges(t, fork)
}
