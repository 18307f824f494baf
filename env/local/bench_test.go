package local

import (
	"context"
	"os/exec"
	"testing"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

func BenchmarkCreateClose(b *testing.B) {
	e := env.New(open(b, Config{}))
	base := envtest.MakeBase(b)
	for b.Loop() {
		s, err := e.Create(context.Background(), env.Spec{Base: base})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec is to be compared with BenchmarkBare, the same program without a sandbox. The bound of the project is
// 15 ms more.
func BenchmarkExec(b *testing.B) {
	e := env.New(open(b, Config{}))
	s, err := e.Create(context.Background(), env.Spec{Base: envtest.MakeBase(b)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Exec(context.Background(), env.Command{Argv: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkBare(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChanges(b *testing.B) {
	e := env.New(open(b, Config{}))
	s, err := e.Create(context.Background(), env.Spec{Base: envtest.MakeBase(b)})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.WriteFile(context.Background(), "pkg/core.py", []byte("changed"), 0); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if c, err := s.Changes(context.Background()); err != nil || len(c) != 1 {
			b.Fatal(c, err)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkParallel measures create, exec, fork and destroy with 1, 16 and 64 sandboxes at a time; the figures are
// milliseconds that each one took, as its user sees it.
func BenchmarkParallel(b *testing.B) {
	e := env.New(open(b, Config{}))
	envtest.BenchParallel(b, e)
}
