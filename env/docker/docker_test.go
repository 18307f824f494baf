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

func TestConformance(t *testing.T) {
	envtest.Run(t, envtest.Harness{
		New:     func(t *testing.T) driver.Driver { return open(t, nil) },
		Argv:    envtest.ShellArgv,
		Missing: true,
	})
}
