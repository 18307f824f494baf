package docker_test

import (
	"fmt"
	"testing"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

// BenchmarkParallel measures create, exec, fork and destroy with 1 and 16 sandboxes at a time; the figures are
// milliseconds that each one took, as its user sees it.
func BenchmarkParallel(b *testing.B) {
	e := env.New(open(b, nil))
	defer e.Close()
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { envtest.Bench(b, e, n) })
	}
}
