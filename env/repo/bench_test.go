package repo_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
)

// BenchmarkCapture measures what a step costs that changed one file of 10 kB: asking the sandbox for its changes, storing
// the new bytes and making the tree id, with repositories of 2, 20 and 200 MB in files of 20 kB, fifty to a folder. It is
// the local driver's overlay. cpu-ns is processor time, which a busy machine changes less than the wall's.
func BenchmarkCapture(b *testing.B) {
	for _, mb := range []int{2, 20, 200} {
		b.Run(fmt.Sprintf("%dMB", mb), func(b *testing.B) {
			base := bigBase(b, mb)
			d, err := local.New(local.Config{Root: b.TempDir(), Workspace: local.WorkspaceOverlay})
			if err != nil {
				b.Skip(err)
			}
			e := env.New(d)
			defer e.Close()
			box, err := e.Create(b.Context(), env.Spec{Base: base.Dir})
			if err != nil {
				b.Skip(err)
			}
			blobs, err := repo.NewBlobs(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			capture := func(i int) {
				if err := box.WriteFile(b.Context(), "d1/f7.py", []byte(strings.Repeat(fmt.Sprintln("x =", i), 1300)), 0); err != nil {
					b.Fatal(err)
				}
				changes, err := box.Changes(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				delta, tree, err := repo.Delta(base, changes, blobs)
				if err != nil || len(delta) != 1 || tree == base.Tree {
					b.Fatal(delta, tree, err)
				}
			}
			capture(0) // lays the base out, once
			b.ReportAllocs()
			began := cpuTime(b)
			for i := 1; b.Loop(); i++ {
				capture(i)
			}
			b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is the processor time, in nanoseconds, that this process has taken.
func cpuTime(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// bigBase is the base of a repository of that many megabytes.
func bigBase(t testing.TB, mb int) *repo.Base {
	t.Helper()
	dir, r := t.TempDir(), rand.NewChaCha8([32]byte{})
	data := make([]byte, 20<<10)
	for i := range mb * 50 {
		name := filepath.Join(dir, fmt.Sprintf("d%d/f%d.py", i/50, i%50))
		_, _ = r.Read(data) // never fails
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	id, err := repo.FolderTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	store, err := repo.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base, err := store.Base(t.Context(), &milepost.Task{ID: "big", Repo: dir, BaseTree: id})
	if err != nil {
		t.Fatal(err)
	}
	return base
}
