package docker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/owner"
)

func TestConfig(t *testing.T) {
	good := Default()
	good.Hosts, good.Image = []string{"unix:///run/docker.sock", "tcp://10.0.0.1:2376"}, "python:3.11"
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"hosts": func(c *Config) { c.Hosts = []string{"http://x"} }, "unix:///PATH": func(c *Config) { c.Hosts = []string{"unix://relative"} },
		"tcp://HOST:PORT": func(c *Config) { c.Hosts = []string{"tcp://10.0.0.1"} }, "image": func(c *Config) { c.Image = "Not An Image" },
		"pull ": func(c *Config) { c.Pull = "always" }, "slots": func(c *Config) { c.Slots = -1 }, "pull_rate": func(c *Config) { c.PullRate = 0 },
		"cpus": func(c *Config) { c.CPUs = -1 }, "tmp_size": func(c *Config) { c.TmpSize = -1 }, "network": func(c *Config) { c.Network = "" },
		"lease": func(c *Config) { c.Lease = time.Second }, "reap": func(c *Config) { c.Reap = 0 }, "retry": func(c *Config) { c.Retry = 0 },
		"agent": func(c *Config) { c.Agent = "relative" }, "tls_cert": func(c *Config) { c.TLSCert = "x" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, _, err := numericUser("root"); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("a user by name: %v", err)
	}
	none := Default()
	if _, err := none.image("local:python3"); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "sandbox.docker.image") {
		t.Errorf("a task without an image: %v", err)
	}
	if got, err := none.image("alpine:3"); got != "alpine:3" || err != nil {
		t.Errorf("a task with an image: %q %v", got, err)
	}
	if local := good.Local(); local {
		t.Error("an engine on tcp:// counts as local")
	}
}

func TestFate(t *testing.T) {
	id, err := newIdentity(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(map[string]string)
		want   fate
	}{
		"me":                {func(map[string]string) {}, alive},
		"my id, earlier":    {func(l map[string]string) { l[labelStart] = "1" }, dead},
		"nobody":            {func(l map[string]string) { l[labelPID] = "4194304" }, dead},
		"another machine":   {func(l map[string]string) { l[labelBoot] = "another" }, elsewhere},
		"another container": {func(l map[string]string) { l[labelSpace] = "pid:[1]" }, elsewhere},
		"nonsense":          {func(l map[string]string) { l[labelPID] = "x" }, elsewhere},
	} {
		labels := id.labels(time.Now())
		c.change(labels)
		if got := fateOf(labels); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	now := time.Unix(1000, 0)
	if a := age(map[string]string{labelMade: "940"}, now); a != time.Minute {
		t.Errorf("age %v", a)
	}
	if owner.Boot() == "" {
		t.Log("this kernel has no boot id")
	}
}

func TestInfra(t *testing.T) {
	for _, err := range []error{driver.ErrInvalid, driver.ErrFull, milepost.E("x", milepost.KindNotFound, "x"), milepost.E("x", milepost.KindMemory, "x"), nil} {
		if infra(err) {
			t.Errorf("%v is worth another engine", err)
		}
	}
	for _, err := range []error{errors.New("connection reset"), milepost.E("x", milepost.KindUnavailable, "x")} {
		if !infra(err) {
			t.Errorf("%v is not worth another engine", err)
		}
	}
}
