package main

import (
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/local"
)

// TestEpisodesInContainers runs the same episodes under bubblewrap and in containers, with shadow probes: they must end the
// same, probe by probe.
func TestEpisodesInContainers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Docker engine")
	}
	if _, err := local.New(local.Config{Root: t.TempDir()}); err != nil {
		t.Skipf("no local sandbox to compare with: %v", err)
	}
	engine := dockertest.Config(t)
	t.Cleanup(func() {
		if err := dockertest.Close(); err != nil {
			t.Error(err)
		}
	})
	o := defaultBench()
	o.Dir, o.Tasks, o.Attempts, o.Concurrency, o.Workers, o.Turn = t.TempDir(), 1, 2, 2, []int{1}, 10*time.Millisecond
	b, err := openBench(t.Context(), o, newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	variants := variantsOf(o.Workers)
	shadowed, specs := variants[len(variants)-1], benchSpecs(b.tasks, o)
	if _, err := b.batch(t.Context(), shadowed, b.tasks, specs); err != nil {
		t.Fatal(err)
	}
	if err := b.world.close(); err != nil {
		t.Fatal(err)
	}
	b.cfg.Sandbox.Driver, b.cfg.Sandbox.Docker = configs.SandboxDocker, engine
	if err := b.cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if b.world, err = openWorld(b.cfg, filepath.Join(o.Dir, "containers")); err != nil {
		t.Fatal(err)
	}
	got, err := b.batch(t.Context(), shadowed, b.tasks, specs) // compares with the first batch
	if err != nil {
		t.Error(err)
	}
	if len(b.seen) != o.Attempts {
		t.Errorf("%d episodes were compared, want %d: %+v", len(b.seen), o.Attempts, got)
	}
	if err := b.world.close(); err != nil {
		t.Error(err)
	}
}
