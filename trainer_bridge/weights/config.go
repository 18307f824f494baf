package weights

import (
	"slices"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
)

// Config says how weights go from the trainer to the servers.
type Config struct {
	// Method is how weights reach a server: disk (it reads the exported directory, which it must see under the same
	// path), transfer (vLLM's weight-transfer API: the trainer sends them over the network) or lora (it reads the exported
	// adapter of trainer.lora, a new one for each version, and never pauses).
	Method string `yaml:"method"`
	// Repeats is how often a replica that fails, or whose canary disagrees, is pushed again before it is quarantined. One
	// that gives no answer in time is quarantined at once.
	Repeats int `yaml:"repeats"`
	// InFlight is what becomes of requests under way: recompute gives up their keys and values, so that what they sample
	// from here on is the new policy's to the last bit; refuse fails the push while there are any. Where
	// policy.token.prefix_cache is salt neither holds: they keep them, and go on.
	InFlight      string         `yaml:"in_flight"`
	PauseTimeout  time.Duration  `yaml:"pause_timeout"`  // of each short call: pause, cache reset, version, resume
	ReloadTimeout time.Duration  `yaml:"reload_timeout"` // of bringing the weights into one replica
	CanaryTimeout time.Duration  `yaml:"canary_timeout"` // of the canary on one replica
	Transfer      TransferConfig `yaml:"transfer"`       // where method is transfer
	Canary        CanaryConfig   `yaml:"canary"`         // after each push the logprobs of servers and trainer are compared
	Salted        bool           `yaml:"-"`              // requests salt their prefixes by version, so no cache is reset; set by policy.token.prefix_cache
}

// What becomes of requests under way.
const (
	InFlightRecompute = "recompute"
	InFlightRefuse    = "refuse"
)

// The values of Config.Method.
const (
	MethodDisk     = "disk"
	MethodTransfer = "transfer"
	MethodLora     = "lora"
)

// Methods are the allowed values of Config.Method.
var Methods = []string{MethodDisk, MethodTransfer, MethodLora}

// DefaultConfig is every default; Canary.Vocab must be set.
func DefaultConfig() Config {
	return Config{
		Method: MethodDisk, Repeats: 1, InFlight: InFlightRecompute,
		PauseTimeout: 30 * time.Second, ReloadTimeout: 10 * time.Minute, CanaryTimeout: 5 * time.Minute,
		Transfer: DefaultTransferConfig(), Canary: DefaultCanaryConfig(),
	}
}

// Validate checks every field.
func (c Config) Validate() error {
	const op = "weights: configuration"
	switch {
	case !slices.Contains(Methods, c.Method):
		return milepost.E(op, milepost.KindInvalid, "method %q is not one of: %s", c.Method, strings.Join(Methods, ", "))
	case c.Repeats < 0:
		return milepost.E(op, milepost.KindInvalid, "repeats is %d; it must be at least 0", c.Repeats)
	case c.InFlight != InFlightRecompute && c.InFlight != InFlightRefuse:
		return milepost.E(op, milepost.KindInvalid, "in_flight %q is not one of: %s, %s", c.InFlight, InFlightRecompute, InFlightRefuse)
	case c.PauseTimeout <= 0 || c.ReloadTimeout <= 0 || c.CanaryTimeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "pause_timeout is %v, reload_timeout %v, canary_timeout %v; each must be above 0", c.PauseTimeout, c.ReloadTimeout, c.CanaryTimeout)
	}
	if err := c.Transfer.Validate(); err != nil {
		return err
	}
	return c.Canary.Validate()
}

// ServerBackend is the backend of the weight-transfer API that the servers must have, "" for none.
func (c Config) ServerBackend() string {
	if c.Method == MethodTransfer {
		return c.Transfer.Backend
	}
	return ""
}

// Trainer is what methods and the canary need of it; trainer_bridge.Client is one.
type Trainer interface {
	Scorer
	Sender
}

// NewMethod makes the configured method.
func NewMethod(cfg Config, trainer Trainer) (Method, error) {
	switch cfg.Method {
	case MethodDisk:
		return Disk{}, nil
	case MethodTransfer:
		return NewTransfer(cfg.Transfer, trainer), nil
	case MethodLora:
		return Lora{}, nil
	}
	return nil, milepost.E("weights: new", milepost.KindInvalid, "method %q is not one of: %s", cfg.Method, strings.Join(Methods, ", "))
}
