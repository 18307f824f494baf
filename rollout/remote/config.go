package remote

import (
	"slices"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// Mode says where the episodes of a run live.
type Mode string

// The modes.
const (
	ModeLocal  Mode = "local"  // in the orchestrator's process
	ModeRemote Mode = "remote" // at `milepost worker rollout` processes
	ModeBoth   Mode = "both"   // at both: the orchestrator's process takes part as one more worker
)

// Modes lists them.
var Modes = []Mode{ModeLocal, ModeRemote, ModeBoth}

// Config says where a run's episodes live and how they are handed out.
type Config struct {
	// Mode is local (in the run's own process, schedule.concurrency at once), remote (at `milepost worker rollout` processes,
	// as many at once as they have free slots) or both (the run's process is one more worker, with worker.slots). In
	// schedule.mode async, schedule.concurrency bounds what is under way at all places together.
	Mode Mode `yaml:"mode"`
	// Lease is how long a worker may be silent before its episodes go to another one. Time in which the run itself has no
	// connection to the messenger does not count.
	Lease time.Duration `yaml:"lease"`
	// MaxLosses is how often workers may fall silent over one episode before it counts as lost to infrastructure.
	MaxLosses   int          `yaml:"max_losses"`
	InlineLimit int          `yaml:"inline_limit"` // bytes of one message; episodes and files above it go through the object store
	Worker      WorkerConfig `yaml:"worker"`       // the workers' side: of `milepost worker rollout`, and in mode both of the run's own process
}

// WorkerConfig configures a worker process.
type WorkerConfig struct {
	Name         string        `yaml:"name"`          // unique among the workers; "" = host and a random part
	Slots        int           `yaml:"slots"`         // episodes at once
	Heartbeat    time.Duration `yaml:"heartbeat"`     // how often it tells that it lives; more often where a run's lease is short
	DrainTimeout time.Duration `yaml:"drain_timeout"` // how long a stopping worker finishes what it holds before it hands it back
	// Orphaned is how long a run may be silent before its episodes here are given up: they would sample for nobody.
	Orphaned time.Duration `yaml:"orphaned"`
}

// Default returns the defaults: local; eight slots at a worker.
func Default() Config {
	return Config{Mode: ModeLocal, Lease: 30 * time.Second, MaxLosses: 3, InlineLimit: 256 << 10,
		Worker: WorkerConfig{Slots: 8, Heartbeat: 2 * time.Second, DrainTimeout: time.Minute, Orphaned: 2 * time.Minute}}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c Config) Validate() error {
	const op = "remote: config"
	switch {
	case !slices.Contains(Modes, c.Mode):
		return milepost.E(op, milepost.KindInvalid, "mode %q is not one of local, remote, both", c.Mode)
	case c.Lease < 100*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "lease %s is below 100ms", c.Lease)
	case c.MaxLosses < 1 || c.MaxLosses > 100:
		return milepost.E(op, milepost.KindInvalid, "max_losses %d is not within 1..100", c.MaxLosses)
	case c.InlineLimit < 0:
		return milepost.E(op, milepost.KindInvalid, "inline_limit %d is negative", c.InlineLimit)
	}
	if err := c.Worker.Validate(); err != nil {
		return milepost.E(op, milepost.KindInvalid, "worker.%s", strings.TrimPrefix(err.Error(), "remote: worker config: "))
	}
	return nil
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c WorkerConfig) Validate() error {
	const op = "remote: worker config"
	switch {
	case c.Name != "" && messages.SafeToken(c.Name) != c.Name:
		return milepost.E(op, milepost.KindInvalid, "name %q is not made of letters, digits, - and _ (at most 64)", c.Name)
	case c.Slots < 1 || c.Slots > 4096:
		return milepost.E(op, milepost.KindInvalid, "slots %d is not within 1..4096", c.Slots)
	case c.Heartbeat < 50*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "heartbeat %s is below 50ms", c.Heartbeat)
	case c.DrainTimeout < 0:
		return milepost.E(op, milepost.KindInvalid, "drain_timeout %s is negative", c.DrainTimeout)
	case c.Orphaned < 5*noticeEvery:
		return milepost.E(op, milepost.KindInvalid, "orphaned %s is below %s", c.Orphaned, 5*noticeEvery)
	}
	return nil
}
