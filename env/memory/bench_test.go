package memory

import (
	"testing"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

// BenchmarkParallel measures create, exec, fork and destroy with 1, 16 and 64 sandboxes at a time: what package env and this
// driver cost, without any process.
func BenchmarkParallel(b *testing.B) {
	e := env.New(New())
	defer e.Close()
	envtest.BenchParallel(b, e)
}
