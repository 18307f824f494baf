package local

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// python is the real interpreter, so that not every driver of a test has to ask a slow shim for it.
var python = sync.OnceValue(func() string {
	in, err := (&Config{}).findPython(context.Background())
	if err != nil || in.bin == "" {
		return ""
	}
	return filepath.Join(in.bin, "python3")
})

// open makes a driver in a folder of the test and checks, with the test, that nothing is left in it.
func open(t testing.TB, cfg Config) *Driver {
	t.Helper()
	cfg.Root = t.TempDir()
	if cfg.Python == "" {
		cfg.Python = python()
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		assertNothingLeft(t, cfg.Root)
		for _, r := range []string{"pids", "memory"} {
			if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", r, filepath.Base(d.home))); err == nil {
				t.Errorf("a control group of %s is left", r)
			}
		}
	})
	return d
}

func conform(t *testing.T, cfg Config) {
	envtest.Run(t, envtest.Harness{
		New:     func(t *testing.T) driver.Driver { return open(t, cfg) },
		Argv:    envtest.ShellArgv,
		Missing: true,
	})
}

func TestConformance(t *testing.T) { conform(t, Config{Workspace: WorkspaceAuto}) }
func TestConformanceCopy(t *testing.T) {
	conform(t, Config{Workspace: WorkspaceCopy, CgroupRoot: "none"})
}
func TestConformanceNoBwrap(t *testing.T) { conform(t, Config{Unconfined: true}) }
