package trainerbridge

import (
	"math"

	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
)

// Options are the choices that [Client.Init] and [Client.Load] share; the zero value is the plain trainer.
type Options struct {
	Lora            LoraConfig
	Kernels         string // fused kernels: "" or "liger"; milepost_trainer/kernels.py
	ContextParallel int    // ranks that share a sequence; 0 and 1 = each has whole ones; milepost_trainer/context.py
	RoutingReplay   bool   // a mixture of experts trains on the routes of its batches; the rule is in milepost_trainer/routing.py
}

func (o Options) proto() *trainerpb.Options {
	return &trainerpb.Options{Lora: o.Lora.proto(), Kernels: o.Kernels, ContextParallel: int32(o.ContextParallel), RoutingReplay: o.RoutingReplay}
}

// LoraConfig is a low-rank adapter; the rule is in milepost_trainer/lora.py.
type LoraConfig struct {
	Enabled       bool     `yaml:"enabled"`        // train an adapter and leave the model's own weights as they are
	Rank          int      `yaml:"rank"`           // columns of the adapter's matrices; a server that takes adapters must allow as many
	Alpha         float64  `yaml:"alpha"`          // the adapter's product is multiplied by alpha / rank
	TargetModules []string `yaml:"target_modules"` // last parts of the names of the layers with an adapter, as q_proj; empty = every linear layer but the head
}

// DefaultLoraConfig is off; once enabled it adapts every linear layer but the head.
func DefaultLoraConfig() LoraConfig { return LoraConfig{Rank: 16, Alpha: 32} }

// Validate reports the first field out of range, with what is allowed.
func (c LoraConfig) Validate() error {
	v := check{op: "trainerbridge: lora configuration"}
	v.atLeast("lora.rank", c.Rank, 1)
	v.above("lora.alpha", c.Alpha, 0)
	v.between("lora.alpha", c.Alpha, 0, math.MaxFloat32)
	for i, name := range c.TargetModules {
		if name == "" {
			v.fail("lora.target_modules[%d] is empty; allowed: the last part of a module's name, as q_proj", i)
		}
	}
	return v.err
}

func (c LoraConfig) proto() *trainerpb.LoraConfig {
	if !c.Enabled {
		return nil
	}
	return &trainerpb.LoraConfig{Rank: int32(c.Rank), Alpha: c.Alpha, TargetModules: c.TargetModules}
}
