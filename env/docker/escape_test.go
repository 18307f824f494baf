package docker_test

import (
	"testing"

	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

// TestEscapes runs the suite. The engine of these tests has no bridge; the host's network is as good to show that the Spec
// decides.
func TestEscapes(t *testing.T) {
	envtest.Escapes(t, envtest.Confined{
		New: func(t *testing.T) driver.Driver {
			return open(t, func(c *docker.Config) { c.TmpSize, c.Network = 4<<20, "host" })
		},
		ExtraProcs: agent.OverheadProcs,
		Grouped:    true, Quota: true, Keeps: true,
	})
}
