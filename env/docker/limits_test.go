package docker_test

import (
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
)

// TestCPU measures that half a processor is what a command gets: a second of it takes two by the wall, less what the engine's
// own process used of the second before it became the command. On a whole processor it would take one.
func TestCPU(t *testing.T) {
	s := box(t, func(c *docker.Config) { c.CPUs = 0.5 }, env.Spec{})
	r := sh(t, s, env.Limits{CPU: time.Second, Wall: 50 * time.Second}, "while :; do :; done")
	if r.TimedOut || r.ExitCode != 137 {
		t.Errorf("an endless loop with a second of CPU: %+v", r)
	}
	if r.Duration < 1400*time.Millisecond {
		t.Errorf("a second of CPU on half a processor took %v", r.Duration)
	}
	if r := sh(t, s, env.Limits{}, "kill -SEGV $$"); r.ExitCode != 139 {
		t.Errorf("a signal: %+v", r)
	}
}

// TestLocked lets a command take away every right to what it changed: that hides nothing from Changes.
func TestLocked(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, `echo new >pkg/core.py; echo more >dir/new; chmod 000 pkg/core.py dir/new README.md; chmod 000 pkg/sub pkg dir`)
	c, err := s.Changes(ctx)
	if err != nil || len(c) != 2 || c[0].Path != "dir/new" || string(c[0].Data) != "more\n" || c[1].Path != "pkg/core.py" || string(c[1].Data) != "new\n" {
		t.Errorf("Changes of locked files: %+v %v", c, err)
	}
	if err := s.Reset(ctx); err != nil {
		t.Errorf("Reset: %v", err)
	}
	if c, err := s.Changes(ctx); err != nil || len(c) != 0 {
		t.Errorf("after Reset: %+v %v", c, err)
	}
}

// TestMemoryOfFiles fills the workspace, then asks for a command with less memory than the files take.
func TestMemoryOfFiles(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, "head -c 400000000 /dev/zero >a; head -c 100000000 /dev/zero >b; true", "x")
	r, err := s.Exec(ctx, env.Command{Argv: []string{"true"}, Limits: env.Limits{Memory: 32 << 20}})
	if k := milepost.KindOf(err); k != milepost.KindLimit && !(err == nil && r.OutOfMemory) {
		t.Errorf("a command with less memory than the files take: %+v %v", r, err)
	}
	sh(t, s, env.Limits{}, "rm -f a b")
	alive(t, s, "too little memory")
}
