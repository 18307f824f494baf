package configs_test

import (
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/configs"
)

// TestLora: adapters as weights need a trainer of adapters, and servers with room for every version under way; a trainer of
// adapters may push whole models.
func TestLora(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"served, not trained": {"weights:\n  method: lora\n", "weights.method is lora and trainer.lora.enabled false; allowed: true, or weights.method disk or transfer"},
		"too few at once": {"weights:\n  method: lora\ntrainer:\n  lora:\n    enabled: true\nschedule:\n  mode: async\nserver:\n  lora:\n    max_loras: 5\n",
			"server.lora.max_loras is 5; weights.method lora needs at least 6 with schedule.mode async"},
		"rounded away":    {"trainer:\n  lora:\n    enabled: true\nserver:\n  dtype: bfloat16\nweights:\n  canary:\n    dtype: bfloat16\n", "weights.method disk and server.dtype bfloat16, in which a merged model rounds a young adapter away"},
		"too high a rank": {"weights:\n  method: lora\ntrainer:\n  lora:\n    enabled: true\n    rank: 600\n", "trainer.lora.rank must be at most 512"},
		"no rank":         {"trainer:\n  lora:\n    rank: 0\n", "lora.rank is 0; allowed: 1 or more"},
		"less memory":     {"server:\n  lora:\n    max_cpu_loras: 2\n", "lora.max_loras is 6 and lora.max_cpu_loras 2"},
		"flag by hand":    {"server:\n  args: [--enable-lora]\n", "args may not set --enable-lora; it is set by weights.method"},
	} {
		if _, err := configs.Load(write(t, c.text), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}

	c, err := configs.Load("quickstart", []string{"trainer.lora.enabled=true"})
	if err != nil || c.Server.Lora.Rank != 0 || c.Policy.Pool.Adapters {
		t.Errorf("merged by disk: rank %d, adapters %v, %v", c.Server.Lora.Rank, c.Policy.Pool.Adapters, err)
	}
	c, err = configs.Load("quickstart", []string{"trainer.lora.enabled=true", "trainer.lora.rank=12", "weights.method=lora"})
	if err != nil || !c.Policy.Pool.Adapters || c.Policy.Pool.Model != c.Server.Name {
		t.Fatalf("as adapters: %+v, %v", c.Policy.Pool, err)
	}
	c.Server.Model = "m"
	if argv := strings.Join(c.Server.Argv(""), " "); !strings.Contains(argv, "--enable-lora --max-lora-rank 16 --max-loras 6 --max-cpu-loras 12") {
		t.Errorf("command %s", argv)
	}
	if got := c.Server.Environ()["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]; got != "1" {
		t.Errorf("VLLM_ALLOW_RUNTIME_LORA_UPDATING is %q", got)
	}
}
