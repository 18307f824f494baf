package envtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/env"
)

// BenchParallel is [Bench] with 1, 16 and 64 sandboxes at a time, as sub-benchmarks.
func BenchParallel(b *testing.B, e *env.Env) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { Bench(b, e, n) })
	}
}

// Bench measures what a sandbox costs its user with n of them at a time: create, exec (of /bin/true), fork (snapshot and
// a new sandbox from it) and destroy, each as the mean of what the n took, in milliseconds.
func Bench(b *testing.B, e *env.Env, n int) {
	base := MakeBase(b)
	sums, counts := map[string]time.Duration{}, map[string]int{}
	var mu sync.Mutex
	timed := func(what string, f func() error) {
		begin := time.Now()
		err := f()
		took := time.Since(begin)
		mu.Lock()
		defer mu.Unlock()
		sums[what] += took
		counts[what]++
		if err != nil {
			b.Errorf("%s: %v", what, err)
		}
	}
	for b.Loop() {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if err := benchOne(e, base, timed); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for what, sum := range sums {
		b.ReportMetric(float64(sum.Microseconds())/1000/float64(counts[what]), what+"-ms")
	}
	b.ReportMetric(0, "ns/op") // the sum of all that says nothing
}

func benchOne(e *env.Env, base string, timed func(string, func() error)) error {
	ctx := context.Background()
	var s, fork *env.Sandbox
	timed("create", func() (err error) { s, err = e.Create(ctx, env.Spec{Base: base}); return err })
	if s == nil {
		return nil
	}
	if err := s.WriteFile(ctx, "pkg/core.py", []byte("changed"), 0); err != nil {
		return err
	}
	timed("exec", func() error { _, err := s.Exec(ctx, env.Command{Argv: []string{"/bin/true"}}); return err })
	timed("fork", func() error {
		snapshot, err := s.Snapshot(ctx)
		if err != nil {
			return err
		}
		fork, err = e.Fork(ctx, snapshot, "fork")
		return err
	})
	if fork != nil {
		timed("destroy", func() error { return fork.Close(ctx) })
	}
	timed("destroy", func() error { return s.Close(ctx) })
	return nil
}
