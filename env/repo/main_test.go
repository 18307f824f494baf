package repo_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost/env/docker/dockertest"
)

// TestMain puts the many small files of these tests into memory where the system has a place for that.
func TestMain(m *testing.M) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		if err := os.Setenv("TMPDIR", "/dev/shm"); err != nil {
			panic(err)
		}
	}
	dockertest.Main(m, func() error { return goleak.Find() })
}
