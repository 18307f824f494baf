package docker_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { dockertest.Main(m, func() error { return goleak.Find() }) }

// open makes a driver that is closed with the test, after which nothing of it may be left on the engine.
func open(t testing.TB, change func(*docker.Config)) *docker.Driver {
	t.Helper()
	cfg := dockertest.Config(t)
	if change != nil {
		change(&cfg)
	}
	d, err := docker.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func conform(t *testing.T, cfg docker.Config) {
	envtest.Run(t, envtest.Harness{
		New:     func(t *testing.T) driver.Driver { return open(t, func(c *docker.Config) { *c = cfg }) },
		Argv:    envtest.ShellArgv,
		Missing: true,
	})
}

func TestConformance(t *testing.T) { conform(t, dockertest.Config(t)) }

// TestConformancePodman runs the same suite on podman's socket.
func TestConformancePodman(t *testing.T) {
	if testing.Short() {
		t.Skip("a second engine")
	}
	conform(t, dockertest.Podman(t))
}
