package docker_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

const ownedEnv = "MILEPOST_TEST_DOCKER_OWNER"

// owned is the driver for envtest.Left; the process that is killed learns of the engine from its environment.
func owned(t *testing.T) envtest.Owned {
	cfg := docker.Default()
	if host, agentPath, ok := strings.Cut(os.Getenv(ownedEnv), " "); ok {
		cfg.Hosts, cfg.Agent, cfg.Image, cfg.Pull = []string{host}, agentPath, dockertest.Image, docker.PullNever
	} else {
		cfg = dockertest.Config(t)
		t.Setenv(ownedEnv, cfg.Hosts[0]+" "+cfg.Agent)
	}
	return envtest.Owned{
		New:    func(string) (driver.Driver, error) { return docker.New(ctx, cfg) },
		Count:  func(t testing.TB, _ string) map[string]int { return countLeft(t, cfg.Hosts[0]) },
		Killed: "TestOwner",
	}
}

func TestOwner(t *testing.T) {
	if os.Getenv(ownedEnv) == "" {
		t.Skip("only as a child of TestNothingLeft")
	}
	envtest.RunOwner(t, owned(t))
}

func TestNothingLeft(t *testing.T) { envtest.Left(t, owned(t)) }

// countLeft counts what this driver's label, or its agent, finds on the machine.
func countLeft(t testing.TB, host string) map[string]int {
	t.Helper()
	cli, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	mine := filters.NewArgs(filters.Arg("label", "milepost.owner"))
	containers, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: mine})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := cli.VolumeList(ctx, volume.ListOptions{Filters: mine})
	if err != nil {
		t.Fatal(err)
	}
	info, err := cli.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{"containers": len(containers), "volumes": len(volumes.Volumes), "agents": len(agents(t)), "mounts": 0}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, filepath.Join(info.DockerRootDir, "overlay2")+"/") || strings.Contains(line, info.DockerRootDir+"/containers/") {
			out["mounts"]++
		}
	}
	return out
}

// agents are the processes 1 of containers on this machine.
func agents(t testing.TB) (out []string) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range lines {
		if line, err := os.ReadFile(p); err == nil && strings.HasPrefix(string(line), agent.Path+"\x00") {
			out = append(out, p)
		}
	}
	return out
}

// TestCancelled cancels many commands and file operations and checks that each leaves no goroutine behind.
func TestCancelled(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, "true")
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			c, cancel := context.WithTimeout(ctx, time.Duration(i*5)*time.Millisecond)
			defer cancel()
			_, err := s.Exec(c, env.Command{Argv: []string{"/bin/sh", "-c", "head -c 10000000 /dev/zero; sleep 1000"}, Stdin: make([]byte, 1<<20)})
			if milepost.KindOf(err) != milepost.KindCanceled {
				t.Errorf("a cancelled command: %v", err)
			}
		})
	}
	wg.Wait()
	envtest.WantGoroutines(t, before)
	alive(t, s, "40 cancelled commands")
}
