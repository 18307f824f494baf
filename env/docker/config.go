package docker

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/milepost-rl/milepost"
)

// Config says which engines run sandboxes, and how.
type Config struct {
	Hosts     []string      `yaml:"hosts"`      // engines: unix:///PATH or tcp://HOST:PORT; empty = DOCKER_HOST, else unix:///var/run/docker.sock
	TLSCA     string        `yaml:"tls_ca"`     // certificate authority of tcp engines (PEM); "" = no TLS
	TLSCert   string        `yaml:"tls_cert"`   // client certificate (PEM)
	TLSKey    string        `yaml:"tls_key"`    // key of the client certificate (PEM)
	Slots     int           `yaml:"slots"`      // sandboxes at once on one engine; more wait; 0 = no bound
	Image     string        `yaml:"image"`      // image of tasks that name none or "local:..."
	Pull      string        `yaml:"pull"`       // missing: pull an image that an engine does not have; never: that is an error
	Prepull   []string      `yaml:"prepull"`    // images that every engine gets before the first sandbox
	PullRate  float64       `yaml:"pull_rate"`  // pulls a minute from one registry, of all engines together
	PullBurst int           `yaml:"pull_burst"` // pulls that may come at once before pull_rate holds
	User      string        `yaml:"user"`       // user[:group] of commands; "" = user and group of this process, so that shared folders can be written
	CPUs      float64       `yaml:"cpus"`       // processors of a sandbox; 0 = no bound
	TmpSize   int64         `yaml:"tmp_size"`   // bytes of /tmp and of /dev/shm at most; 0 is 256 MiB
	Network   string        `yaml:"network"`    // the engine's network for tasks that may use one
	Runtime   string        `yaml:"runtime"`    // the engine's runtime, for example runsc; "" = the engine's default
	Agent     string        `yaml:"agent"`      // statically linked program to run as process 1; "" = this one
	Lease     time.Duration `yaml:"lease"`      // a sandbox ends when its owner was silent for so long
	Reap      time.Duration `yaml:"reap"`       // how often what dead owners left is collected
	Retry     time.Duration `yaml:"retry"`      // an engine that failed is left alone for this long at first, up to 16 times as long
}

const defaultTmpSize = 256 << 20

// Pull policies.
const (
	PullMissing = "missing"
	PullNever   = "never"
)

// Default returns the configuration where nothing is said. It names no image.
func Default() Config {
	return Config{Pull: PullMissing, PullRate: 20, PullBurst: 5, Network: "bridge", Lease: time.Minute, Reap: time.Minute, Retry: 5 * time.Second}
}

// Validate names the field that is wrong and what is allowed. The error is of KindInvalid.
func (c *Config) Validate() error {
	const op = "env/docker: configure"
	bad := func(format string, args ...any) error { return milepost.E(op, milepost.KindInvalid, format, args...) }
	for _, h := range c.Hosts {
		if err := checkHost(h); err != nil {
			return bad("hosts: %w", err)
		}
	}
	for _, image := range append(slices.Clone(c.Prepull), c.Image) {
		if image == "" {
			continue
		}
		if _, err := reference.ParseNormalizedNamed(image); err != nil {
			return bad("image %q: %v; it must be a reference such as python:3.11 or an image id", image, err)
		}
	}
	switch {
	case c.Pull != PullMissing && c.Pull != PullNever:
		return bad("pull is %q; allowed: missing, never", c.Pull)
	case c.Slots < 0:
		return bad("slots is %d; it must be positive, or 0 for no bound", c.Slots)
	case c.PullRate <= 0 || c.PullBurst < 1:
		return bad("pull_rate is %g and pull_burst %d; they must be positive", c.PullRate, c.PullBurst)
	case c.CPUs < 0:
		return bad("cpus is %g; it must be positive, or 0 for no bound", c.CPUs)
	case c.TmpSize < 0:
		return bad("tmp_size is %d; it must be positive, or 0 for %d", c.TmpSize, defaultTmpSize)
	case c.Network == "":
		return bad("network is empty; it must name a network of the engine, for example bridge")
	case c.Lease < 5*time.Second:
		return bad("lease is %s; it must be at least 5s", c.Lease)
	case c.Reap < time.Second:
		return bad("reap is %s; it must be at least 1s", c.Reap)
	case c.Retry <= 0:
		return bad("retry is %s; it must be positive", c.Retry)
	case c.Agent != "" && !filepath.IsAbs(c.Agent):
		return bad("agent %q must be an absolute path", c.Agent)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return bad("tls_cert and tls_key must both be given, or neither")
	}
	return nil
}

func checkHost(h string) error {
	u, err := url.Parse(h)
	switch {
	case err != nil:
		return err
	case u.Scheme == "unix" && filepath.IsAbs(u.Path):
		return nil
	case u.Scheme == "tcp" && u.Port() != "":
		return nil
	}
	return fmt.Errorf("%q is neither unix:///PATH nor tcp://HOST:PORT", h)
}

// hosts are the engines to use, where none is named those of the environment.
func (c *Config) hosts() []string {
	if len(c.Hosts) > 0 {
		return c.Hosts
	}
	if h := os.Getenv("DOCKER_HOST"); h != "" {
		return []string{h}
	}
	return []string{"unix:///var/run/docker.sock"}
}

// Local reports whether every engine is on this machine, as far as its address tells: folders can be shared only then.
func (c *Config) Local() bool {
	return !slices.ContainsFunc(c.hosts(), func(h string) bool { return !strings.HasPrefix(h, "unix:") })
}

func (c *Config) tmpSize() int64 {
	if c.TmpSize == 0 {
		return defaultTmpSize
	}
	return c.TmpSize
}

// user is what containers run as.
func (c *Config) user() string {
	if c.User != "" {
		return c.User
	}
	return fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
}

// image is what a task's environment identity means here.
func (c *Config) image(identity string) (string, error) {
	if identity != "" && identity != "local" && !strings.HasPrefix(identity, "local:") {
		return identity, nil
	}
	if c.Image == "" {
		return "", milepost.E("env/docker: create", milepost.KindInvalid, "the task's image is %q and the configuration names no image; set sandbox.docker.image", identity)
	}
	return c.Image, nil
}
