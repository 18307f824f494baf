package configs

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// checkLora checks what adapters ask of other sections. An adapter may be trained and served merged, as a whole model, by
// any method of pushing; served as an adapter it may only be where it is trained.
func (c Run) checkLora() error {
	const op = "configs: validate"
	if c.Weights.Method != weights.MethodLora {
		if c.Trainer.Lora.Enabled && c.Server.DType != "float32" {
			return milepost.E(op, milepost.KindInvalid, "trainer.lora.enabled is true, weights.method %s and server.dtype %s, in which a merged model rounds a young adapter away; allowed: weights.method lora, or server.dtype float32", c.Weights.Method, c.Server.DType)
		}
		return nil
	}
	versions := c.Schedule.Async.MaxStaleness + 2 // that may have requests under way: those that train, and the one whose canary sings
	if c.Schedule.Mode != orchestrator.ModeAsync {
		versions = 2
	}
	server := c.Server
	server.Lora.Rank = c.Trainer.Lora.Rank
	switch {
	case !c.Trainer.Lora.Enabled:
		return milepost.E(op, milepost.KindInvalid, "weights.method is lora and trainer.lora.enabled false; allowed: true, or weights.method disk or transfer")
	case c.Server.Name == "":
		return milepost.E(op, milepost.KindInvalid, "server.name is empty and weights.method lora, whose adapters are called after it; it must be the name that the servers give the base model")
	case c.Server.Lora.MaxLoras < versions:
		return milepost.E(op, milepost.KindInvalid, "server.lora.max_loras is %d; weights.method lora needs at least %d with schedule.mode %s: so many versions may have requests under way", c.Server.Lora.MaxLoras, versions, c.Schedule.Mode)
	}
	return server.Validate()
}

// serveAdapters tells servers and pool of adapters, where versions are such.
func (c *Run) serveAdapters() {
	if c.Weights.Method == weights.MethodLora {
		c.Server.Lora.Rank = c.Trainer.Lora.Rank
		c.Policy.Pool.Adapters, c.Policy.Pool.Model = true, c.Server.Name
	}
}
