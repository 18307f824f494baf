package dockertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/milepost-rl/milepost/env/docker"
)

// Engine is a Docker engine of one test's own, which the test may kill. It ends with the test.
type Engine struct {
	Host   string // unix://PATH
	Dir    string // holds everything of the engine
	script string
	args   []string
}

// Missing says what keeps an engine from being started on this machine, "" where one could be.
func Missing() string {
	engine, err := script("docker-engine")
	if err == nil {
		var out []byte
		out, err = exec.Command(engine, "missing").Output()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
	}
	return err.Error()
}

// StartEngine starts an engine, with further arguments of dockerd, that holds [Image].
func StartEngine(t testing.TB, args ...string) *Engine {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "milepost-docker-") // on disk, whatever TMPDIR says: an engine's layers are large
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{Dir: filepath.Join(dir, "engine"), args: args}
	if e.script, err = script("docker-engine"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		out, err := exec.Command(e.script, "stop", e.Dir).CombinedOutput()
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Errorf("stop the engine: %v: %s", err, out)
		}
	})
	if err := e.start(fmt.Sprint(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	if err := Import(e.Host, dir); err != nil {
		t.Fatal(err)
	}
	return e
}

// start runs the engine; the process of the given id is watched, and the engine ends with it.
func (e *Engine) start(watch string) error {
	out, err := exec.Command(e.script, append([]string{"start", e.Dir, watch}, e.args...)...).Output()
	if exit, ok := err.(*exec.ExitError); ok {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	e.Host = strings.TrimSpace(string(out))
	return err
}

// Config is a configuration for the engine, with agent as the program that runs as process 1 (see [BuildAgent]).
func (e *Engine) Config(agent string) docker.Config {
	c := docker.Default()
	c.Hosts, c.Image, c.Pull, c.Agent = []string{e.Host}, Image, docker.PullNever, agent
	return c
}

// Kill ends dockerd and its containerd as the kernel would (SIGKILL). Containers and what holds them go on.
func (e *Engine) Kill() error {
	for _, file := range []string{"docker.pid", "exec/containerd/containerd.pid"} {
		text, err := os.ReadFile(filepath.Join(e.Dir, file))
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("%s: kill %d: %w", file, pid, err)
		}
	}
	return nil
}

// Restart starts a killed engine on what it left.
func (e *Engine) Restart() error { return e.start("") }

// BuildAgent builds the program that runs as process 1 of containers and returns its path.
func BuildAgent(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	if err := buildAgent(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func buildAgent(path string) error {
	agent := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/milepost-rl/milepost/env/docker/agent/cmd")
	agent.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := agent.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return nil
}
