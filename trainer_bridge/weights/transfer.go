package weights

import (
	"time"

	"github.com/milepost-rl/milepost"
)

// TransferConfig says how the trainer and a server find each other, and what goes over the wire.
type TransferConfig struct {
	Backend string        `yaml:"backend"` // gloo (CPU; our vLLM plugin) or nccl (GPUs; vLLM's own); a started server is told
	Host    string        `yaml:"host"`    // address of the trainer's machine that the servers reach (gloo)
	Port    int           `yaml:"port"`    // where trainer and servers meet on it; 0 = any free one (gloo)
	Timeout time.Duration `yaml:"timeout"` // longest standstill: meeting, or one buffer; a replica that stands still longer has failed
	// BufferMB is how much is packed into one message. Each side holds two such buffers; a tensor that is larger goes alone.
	BufferMB int `yaml:"buffer_mb"`
}

// The values of TransferConfig.Backend.
const (
	BackendGloo = "gloo"
	BackendNCCL = "nccl"
)

// DefaultTransferConfig is every default.
func DefaultTransferConfig() TransferConfig {
	return TransferConfig{Backend: BackendGloo, Host: "127.0.0.1", Timeout: time.Minute, BufferMB: 256}
}

// Validate checks every field.
func (c TransferConfig) Validate() error {
	const op = "weights: transfer configuration"
	switch {
	case c.Backend != BackendGloo && c.Backend != BackendNCCL:
		return milepost.E(op, milepost.KindInvalid, "backend %q is not one of: %s, %s", c.Backend, BackendGloo, BackendNCCL)
	case c.Host == "":
		return milepost.E(op, milepost.KindInvalid, "host is empty; it must be an address of the trainer's machine")
	case c.Port < 0 || c.Port > 65535:
		return milepost.E(op, milepost.KindInvalid, "port is %d; it must be 0 (any free one) to 65535", c.Port)
	case c.Timeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "timeout is %v; it must be above 0", c.Timeout)
	case c.BufferMB < 1 || c.BufferMB > 1<<16:
		return milepost.E(op, milepost.KindInvalid, "buffer_mb is %d; it must be 1 to 65536", c.BufferMB)
	}
	return nil
}
