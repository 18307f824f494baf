package apptainer

import (
	"testing"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

// BenchmarkParallel measures create, exec, fork and destroy with 1, 16 and 64 sandboxes at a time, with the installed
// program only: the stand-in's figures would say nothing.
func BenchmarkParallel(b *testing.B) {
	e := env.New(open(b, config(b, true)))
	defer e.Close()
	envtest.BenchParallel(b, e)
}
