package apptainer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	if role := os.Getenv(standInEnv); role != "" {
		runtime.LockOSThread()
		os.Exit(standIn(role))
	}
	code := m.Run()
	if made := kit; made != nil {
		if err := os.RemoveAll(made.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// tools are an image, the agent and the stand-in's program, made once.
type tools struct{ dir, image, agent, standIn string }

var (
	kitOnce sync.Once
	kit     *tools
	kitErr  error
)

func makeKit() (*tools, error) {
	dir, err := os.MkdirTemp("/var/tmp", "milepost-apptainer-") // an overlay's lower layer, so not on an overlay
	if err != nil {
		return nil, err
	}
	k := &tools{dir, filepath.Join(dir, "image"), filepath.Join(dir, "agent"), filepath.Join(dir, "apptainer")}
	if err := os.Chmod(dir, 0o755); err != nil {
		return k, err
	}
	if err := os.Mkdir(k.image, 0o755); err != nil {
		return k, err
	}
	if err := dockertest.Rootfs(filepath.Join(dir, "rootfs.tar")); err != nil {
		return k, err
	}
	if out, err := exec.Command("tar", "-C", k.image, "-xf", filepath.Join(dir, "rootfs.tar")).CombinedOutput(); err != nil {
		return k, fmt.Errorf("%w: %s", err, out)
	}
	for _, d := range []string{"var/tmp", ".singularity.d"} {
		if err := os.MkdirAll(filepath.Join(k.image, d), 0o755); err != nil {
			return k, err
		}
	}
	if err := dockertest.Agent(k.agent); err != nil {
		return k, err
	}
	self, err := os.Executable()
	if err != nil {
		return k, err
	}
	return k, os.WriteFile(k.standIn, fmt.Appendf(nil, "#!/bin/sh\n%s=program exec '%s' \"$@\"\n", standInEnv, self), 0o755)
}

// config is one for the installed program, or for the stand-in. The test is skipped where it cannot be run.
func config(t testing.TB, real bool) Config {
	t.Helper()
	cfg := Default()
	if _, err := cfg.findProgram(); real && err != nil {
		t.Skip(err)
	}
	if !real && os.Getuid() != 0 {
		t.Skip("the stand-in makes namespaces and mounts, which needs root")
	}
	kitOnce.Do(func() { kit, kitErr = makeKit() })
	if kitErr != nil {
		t.Fatal(kitErr)
	}
	cfg.Image, cfg.Agent = kit.image, kit.agent
	if !real {
		cfg.Program = kit.standIn
	}
	return cfg
}

// open makes a driver that is closed with the test, after which nothing of it may be left.
func open(t testing.TB, cfg Config) *Driver {
	t.Helper()
	root, err := os.MkdirTemp("/var/tmp", "milepost-apptainer-root-")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Root = root
	d, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), root) {
			t.Errorf("mounts are left: %v", err)
		}
		if err := os.Remove(root); err != nil {
			t.Errorf("something is left: %v", err)
		}
	})
	return d
}

// both runs a test with the installed program and with the stand-in, as far as they can be had.
func both(t *testing.T, f func(t *testing.T, cfg Config)) {
	t.Run("Apptainer", func(t *testing.T) { f(t, config(t, true)) })
	t.Run("StandIn", func(t *testing.T) { f(t, config(t, false)) })
}

func TestConformance(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		envtest.Run(t, envtest.Harness{
			New:     func(t *testing.T) driver.Driver { return open(t, cfg) },
			Argv:    envtest.ShellArgv,
			Missing: true,
		})
	})
}

func TestConfig(t *testing.T) {
	good := Default()
	good.Root, good.Image = "/scratch", "docker://python:3.11"
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"root": func(c *Config) { c.Root = "relative" }, "images": func(c *Config) { c.Images = "x" }, "agent": func(c *Config) { c.Agent = "x" },
		"cgroups": func(c *Config) { c.CgroupRoot = "x" }, "image": func(c *Config) { c.Image = "docker://No Image" }, "docker://, oras://": func(c *Config) { c.Image = "http://x" },
		"pull": func(c *Config) { c.Pull = "always" }, "UID:GID": func(c *Config) { c.User = "root" }, "is root": func(c *Config) { c.User = "0:0" },
		"tmp_size": func(c *Config) { c.TmpSize = -1 }, "lease": func(c *Config) { c.Lease = time.Second },
	} {
		c := good
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	missing := good
	missing.Root, missing.Program = t.TempDir(), "no-such-apptainer"
	if _, err := New(ctx, missing); milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "module load apptainer") {
		t.Errorf("without the program: %v", err)
	}
}

func TestImageNames(t *testing.T) {
	c := Default()
	for identity, want := range map[string]string{"python:3.11": "docker://python:3.11", "docker://a/b:c": "docker://a/b:c", "/x/y.sif": "/x/y.sif", "oras://r/x:1": "oras://r/x:1"} {
		if got, err := c.image(identity); got != want || err != nil {
			t.Errorf("%s: %q %v", identity, got, err)
		}
	}
	for _, identity := range []string{"", "local:x", "http://x", "--fakeroot x", "oras://-x"} {
		if got, err := c.image(identity); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%s: %q %v", identity, got, err)
		}
	}
}

func TestProgramEnv(t *testing.T) {
	got := programEnv([]string{"PATH=/bin", "APPTAINER_BIND=/:/host", "APPTAINERENV_LD_PRELOAD=x", "SINGULARITY_BINDPATH=/", "APPTAINER_CACHEDIR=/c",
		"APPTAINER_DOCKER_PASSWORD=p", "SINGULARITYENV_X=1", "HOME=/root", "APPTAINER_WRITABLE=1"})
	if want := "PATH=/bin APPTAINER_CACHEDIR=/c APPTAINER_DOCKER_PASSWORD=p HOME=/root"; strings.Join(got, " ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPull runs a program that only pulls.
func TestPull(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "apptainer")
	text := "#!/bin/sh\n[ \"$1 $2\" = '--quiet pull' ] || exit 9\ncase $4 in *missing*) echo 'FATAL: manifest unknown' >&2; exit 255;; *broken*) exit 1;; esac\n" +
		"echo pulled >>" + dir + "/log; sleep 0.2; echo sif >\"$3\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &images{dir: filepath.Join(dir, "images"), pull: PullMissing, program: script, env: os.Environ()}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			p, err := s.path(ctx, "docker://a:1")
			if data, readErr := os.ReadFile(p); err != nil || readErr != nil || string(data) != "sif\n" {
				t.Errorf("%s: %q %v %v", p, data, err, readErr)
			}
		})
	}
	wg.Wait()
	if log, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || string(log) != "pulled\n" {
		t.Errorf("five users of one image: %q %v", log, err)
	}
	for image, kind := range map[string]milepost.Kind{"docker://missing": milepost.KindNotFound, "docker://broken": milepost.KindUnavailable, "/no/such.sif": milepost.KindNotFound} {
		if _, err := s.path(ctx, image); milepost.KindOf(err) != kind {
			t.Errorf("%s: %v", image, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.dir, ".pull-*")); err != nil || len(left) > 0 {
		t.Errorf("pulls leave %q %v", left, err)
	}
	s.pull = PullNever
	if _, err := s.path(ctx, "docker://b:1"); milepost.KindOf(err) != milepost.KindNotFound || !strings.Contains(err.Error(), "pull") {
		t.Errorf("without pulls: %v", err)
	}
}
