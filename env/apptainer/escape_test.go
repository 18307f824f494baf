package apptainer

import (
	"encoding/json"
	"os"
	"testing"

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
