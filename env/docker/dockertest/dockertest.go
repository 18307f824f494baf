// Package dockertest gives tests a Docker engine, an image and an agent: the engine that runs on this machine, or one of
// the test's own that lives below a temporary folder and ends with the test process, however that ends.
//
//	func TestMain(m *testing.M) { dockertest.Main(m, nil) }
//	func TestX(t *testing.T) { cfg := dockertest.Config(t); ... }
//
// MILEPOST_TEST_DOCKER names an engine to use instead (unix:///PATH or tcp://HOST:PORT). A test is skipped, with the
// reason, only where no engine runs and none can be started.
package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/milepost-rl/milepost/env/docker"
)

// Image is the image of [Config]: a shell, the usual tools, git and Python 3.
const Image = "milepost/test:local"

// set is what a test process has, made once.
type set struct {
	name string // docker or podman
	dir  string // temporary folder
	own  bool   // the engine is this process's own
	host string
	why  string // no engine can be had
	err  error
}

var (
	mu   sync.Mutex
	made = map[string]*set{} // by name
)

// Main runs the tests, ends what was started, then calls check, if given. It exits.
func Main(m *testing.M, check func() error) {
	code := m.Run()
	if err := Close(); err != nil {
		fmt.Fprintln(os.Stderr, "dockertest:", err)
		code = 1
	}
	if check != nil && code == 0 {
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Close ends what was started, for a package that does not use [Main]. The next Config starts anew.
func Close() error {
	mu.Lock()
	defer mu.Unlock()
	var errs []error
	for _, s := range made {
		errs = append(errs, s.close())
	}
	clear(made)
	return errors.Join(errs...)
}

// Config returns a configuration for the engine, or skips the test with the reason why there is none.
func Config(t testing.TB) docker.Config {
	t.Helper()
	return config(t, "docker", "MILEPOST_TEST_DOCKER", os.Getenv("DOCKER_HOST"), "unix:///var/run/docker.sock")
}

// Podman is Config for a podman service; MILEPOST_TEST_PODMAN names one to use instead of the test's own.
func Podman(t testing.TB) docker.Config {
	t.Helper()
	return config(t, "podman", "MILEPOST_TEST_PODMAN")
}

// config finds one of the hosts that answers, else starts an engine with the program build/NAME-engine.
func config(t testing.TB, name, variable string, hosts ...string) docker.Config {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	s := made[name]
	if s == nil {
		s = open(name, append([]string{os.Getenv(variable)}, hosts...))
		made[name] = s
	}
	if s.why != "" {
		t.Skipf("no %s engine runs and none can be started: %s", name, s.why)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	c := docker.Default()
	c.Hosts, c.Image, c.Pull, c.Agent = []string{s.host}, Image, docker.PullNever, filepath.Join(s.dir, "agent")
	return c
}

// Client returns a client of an engine, for a look behind the driver.
func Client(t testing.TB, host string) *client.Client {
	t.Helper()
	cli, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

func open(name string, hosts []string) *set {
	s := &set{name: name}
	place := "/var/tmp" // on disk, whatever TMPDIR says: an engine's layers are large
	if _, err := os.Stat(place); err != nil {
		place = ""
	}
	if s.dir, s.err = os.MkdirTemp(place, "milepost-docker-"); s.err != nil {
		return s
	}
	if s.err = s.findEngine(hosts); s.err != nil || s.why != "" {
		return s
	}
	if s.err = buildAgent(filepath.Join(s.dir, "agent")); s.err != nil {
		return s
	}
	s.err = Import(s.host, s.dir)
	return s
}

// script is the path of a program in build/.
func script(name string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/milepost-rl/milepost").Output()
	return filepath.Join(strings.TrimSpace(string(out)), "build", name), err
}

// findEngine uses one that runs, else starts one.
func (s *set) findEngine(hosts []string) error {
	for _, host := range hosts {
		if host != "" && answers(host) {
			s.host = host
			return nil
		}
	}
	engine, err := script(s.name + "-engine")
	if err != nil {
		return err
	}
	if out, err := exec.Command(engine, "missing").Output(); err != nil || len(out) > 0 {
		s.why = strings.TrimSpace(string(out))
		return err
	}
	out, err := exec.Command(engine, "start", filepath.Join(s.dir, "engine"), fmt.Sprint(os.Getpid())).Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		return err
	}
	s.own, s.host = true, strings.TrimSpace(string(out))
	return nil
}

func answers(host string) bool {
	cli, err := client.NewClientWithOpts(client.WithHost(host))
	if err != nil {
		return false
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = cli.Ping(ctx)
	return err == nil
}

// Import makes Image on an engine, unless it is there. dir keeps the root file system for the next engine.
func Import(host, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cli, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer cli.Close()
	if _, err := cli.ImageInspect(ctx, Image); err == nil {
		return nil
	}
	rootfs := filepath.Join(dir, "rootfs.tar")
	if _, err := os.Stat(rootfs); err != nil {
		if err := makeRootfs(rootfs); err != nil {
			return err
		}
	}
	f, err := os.Open(rootfs)
	if err != nil {
		return err
	}
	defer f.Close()
	progress, err := cli.ImageImport(ctx, image.ImportSource{Source: f, SourceName: "-"}, Image, image.ImportOptions{})
	if err != nil {
		return err
	}
	if err := progress.Close(); err != nil {
		return err
	}
	_, err = cli.ImageInspect(ctx, Image)
	return err
}

func makeRootfs(to string) error {
	program, err := script("docker-image")
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(program)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	return cmd.Run()
}

func (s *set) close() error {
	if s.own {
		engine, err := script(s.name + "-engine")
		if err != nil {
			return err
		}
		if out, err := exec.Command(engine, "stop", filepath.Join(s.dir, "engine")).CombinedOutput(); err != nil {
			return fmt.Errorf("stop the engine: %w: %s", err, out)
		}
	}
	return os.RemoveAll(s.dir)
}
