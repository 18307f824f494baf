package docker_test

import (
	"testing"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

// BenchmarkParallel measures create, exec, fork and destroy with 1, 16 and 64 sandboxes at a time; the figures are
// milliseconds that each one took, as its user sees it.
func BenchmarkParallel(b *testing.B) {
	e := env.New(open(b, nil))
	defer e.Close()
	envtest.BenchParallel(b, e)
}
