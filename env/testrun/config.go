package testrun

import (
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// Config says how tests are run.
type Config struct {
	Timeout  time.Duration `yaml:"timeout"`   // of one run, for a task that states none
	Limits   env.Limits    `yaml:"limits"`    // of the processes of one run; zero fields take the environment's. wall is ignored: see timeout
	Resident bool          `yaml:"resident"`  // use resident processes for tasks that allow them
	Slots    int           `yaml:"slots"`     // resident processes at most; 0 is the number of processors
	MaxUses  int           `yaml:"max_uses"`  // runs after which a resident process is replaced
	Grace    time.Duration `yaml:"grace"`     // how long past a run's timeout a resident process may take to answer before it counts as dead
	LogBytes int64         `yaml:"log_bytes"` // bytes of a run's output that are kept
	Scratch  string        `yaml:"scratch"`   // folder for the copies that resident processes test; "" is /dev/shm where there is one, else the system's temporary folder
}

// Default returns the configuration where nothing is said.
func Default() Config {
	return Config{
		Timeout:  30 * time.Minute, // as SWE-bench
		Resident: true,
		MaxUses:  1000,
		Grace:    5 * time.Second,
		LogBytes: 64 << 10,
	}
}

// Validate names the field that is wrong and what is allowed. The error is of KindInvalid.
func (c *Config) Validate() error {
	const op = "testrun: configure"
	switch {
	case c.Timeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "timeout is %s; it must be positive", c.Timeout)
	case c.Slots < 0:
		return milepost.E(op, milepost.KindInvalid, "slots is %d; it must be positive, or 0 for the number of processors", c.Slots)
	case c.MaxUses < 1:
		return milepost.E(op, milepost.KindInvalid, "max_uses is %d; it must be at least 1", c.MaxUses)
	case c.Grace <= 0:
		return milepost.E(op, milepost.KindInvalid, "grace is %s; it must be positive", c.Grace)
	case c.LogBytes < 0:
		return milepost.E(op, milepost.KindInvalid, "log_bytes is %d; it must not be negative", c.LogBytes)
	case c.Scratch != "" && !filepath.IsAbs(c.Scratch):
		return milepost.E(op, milepost.KindInvalid, "scratch %q must be an absolute path, or empty", c.Scratch)
	}
	l := c.Limits
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"cpu", int64(l.CPU)}, {"memory", l.Memory}, {"procs", int64(l.Procs)}, {"output", l.Output}, {"file_size", l.FileSize}, {"disk", l.Disk},
	} {
		if f.value < 0 {
			return milepost.E(op, milepost.KindInvalid, "limits.%s is %d; it must be positive, or 0 for the default", f.name, f.value)
		}
	}
	return nil
}

func (c *Config) slots() int {
	if c.Slots > 0 {
		return c.Slots
	}
	return runtime.NumCPU()
}

func (c *Config) scratch() string {
	if c.Scratch != "" {
		return c.Scratch
	}
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}
