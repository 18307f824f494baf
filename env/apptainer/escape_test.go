package apptainer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

// TestEscapes runs the suite. User namespaces can be made inside: nothing filters system calls unless the site does.
func TestEscapes(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		cfg.TmpSize = 4 << 20
		d := open(t, cfg)
		envtest.Escapes(t, envtest.Confined{
			New:        func(t *testing.T) driver.Driver { return open(t, cfg) },
			ExtraProcs: agent.OverheadProcs + programProcs,
			Grouped:    d.cgroups != nil, Quota: d.quota, Keeps: true,
			Allowed: []string{"user_namespace"},
		})
	})
}

func TestMounts(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		e := env.New(open(t, cfg))
		defer e.Close()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a,b"), []byte("seen"), 0o644); err != nil {
			t.Fatal(err)
		}
		mount := env.Mount{Host: dir, Path: "/mnt/dir"}
		s, err := e.Create(ctx, env.Spec{Mounts: []env.Mount{mount}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Exec(ctx, env.Command{Argv: []string{"/bin/sh", "-c", `cat "$1"/a,b; echo x >"$1"/new`, "sh", s.Inside(mount)}})
		if err != nil || string(r.Stdout) != "seen" || r.ExitCode == 0 {
			t.Errorf("a read-only mount: %+v %v", r, err)
		}
		if mount.Writable = true; os.Getuid() == 0 {
			if _, err := e.Create(ctx, env.Spec{Mounts: []env.Mount{mount}}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "tests.resident") {
				t.Errorf("a writable mount of root's: %v", err)
			}
		}
	})
}

// TestLimitsWithoutGroups is the limits where no control group keeps them.
func TestLimitsWithoutGroups(t *testing.T) {
	both(t, func(t *testing.T, cfg Config) {
		cfg.CgroupRoot = "none"
		e := env.New(open(t, cfg))
		defer e.Close()
		s, err := e.Create(ctx, env.Spec{Base: envtest.MakeBase(t)})
		if err != nil {
			t.Fatal(err)
		}
		run := func(l env.Limits, program string) env.Result {
			r, err := s.Exec(ctx, env.Command{Argv: []string{"python3", "-c", program}, Limits: l})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		grab := `x = bytearray(400 << 20); print("got it")`
		if r := run(env.Limits{Memory: 128 << 20}, grab); r.ExitCode == 0 || !bytes.Contains(r.Stderr, []byte("MemoryError")) {
			t.Errorf("400 MiB of 128: %+v", r)
		}
		if r := run(env.Limits{Memory: 1 << 30}, grab); string(r.Stdout) != "got it\n" {
			t.Errorf("400 MiB of 1024: %+v %s", r, r.Stderr)
		}
		r := run(env.Limits{Procs: 30, Wall: 30 * time.Second}, `
import os, time
n = 0
try:
    while n < 1000:
        if os.fork() == 0:
            time.sleep(100)
        n += 1
except OSError as e:
    print(n, e.errno)
`)
		var n, errno int
		if _, err := fmt.Sscan(string(r.Stdout), &n, &errno); r.TimedOut || err != nil || n < 25 || n > 30+2*(agent.OverheadProcs+programProcs) || errno != 11 {
			t.Errorf("a fork bomb with 30 processes: %q %s %v after %v", r.Stdout, r.Stderr, err, r.Duration)
		}
		if r := run(env.Limits{}, "print(1)"); string(r.Stdout) != "1\n" {
			t.Errorf("after all this: %+v %s", r, r.Stderr)
		}
	})
}

const ownedEnv = "MILEPOST_TEST_APPTAINER_OWNER"

// owned is the driver for envtest.Left; the process that is killed learns of the program from its environment.
func owned(t *testing.T) envtest.Owned {
	var cfg Config
	if text := os.Getenv(ownedEnv); text == "" {
		cfg = config(t, false)
		data, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(ownedEnv, string(data))
	} else if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		t.Fatal(err)
	}
	return envtest.Owned{
		New: func(root string) (driver.Driver, error) {
			cfg := cfg
			cfg.Root = root
			return New(ctx, cfg)
		},
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
