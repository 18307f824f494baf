package shadow

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/env/repo"
)

// BenchmarkProbe is what the messenger costs a probe: everything but rebuilding the tree and testing.
func BenchmarkProbe(b *testing.B) {
	cfg := DefaultServer()
	cfg.Dir = b.TempDir()
	srv, err := StartServer(cfg)
	must(b, err)
	defer srv.Close()
	nc, err := srv.Connect("bench")
	must(b, err)
	defer nc.Close()
	blobs, err := repo.NewBlobs(b.TempDir())
	must(b, err)
	pc := DefaultProber()
	pc.Run, pc.Epoch = "bench", 1
	p, err := NewProber(b.Context(), nc, pc, blobs)
	must(b, err)
	defer func() { must(b, p.Close()) }()
	w, err := NewWorker(b.Context(), nc, DefaultWorker(), &fakeRunner{}, blobs)
	must(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	task := testTask(b.TempDir())
	ids := make([]string, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		r := (&rig{task: task}).step("e", i, i+1)
		must(b, p.Publish(b.Context(), r))
		ids = append(ids, r.ID)
	}
	for id, got := range p.Await(b.Context(), ids, 10*time.Minute) {
		if !got.Trusted {
			b.Fatal(fmt.Sprint(id, got))
		}
	}
}
