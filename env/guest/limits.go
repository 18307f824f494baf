package guest

import (
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
)

// Limits are those of a sandbox as a whole.
type Limits struct {
	Memory int64 // bytes; 0: none
	Procs  int64 // 0: none
}

// LimitsOf adds what is not a command's to its limits: the base, which lies in memory, and the agent.
func LimitsOf(l driver.Limits, b Base) Limits {
	var out Limits
	if l.Memory > 0 {
		out.Memory = l.Memory + b.Bytes + agent.OverheadMemory
	}
	if l.Procs > 0 {
		out.Procs = int64(l.Procs) + agent.OverheadProcs
	}
	return out
}

func (l Limits) over(o Limits) Limits {
	return Limits{larger(l.Memory, o.Memory), larger(l.Procs, o.Procs)}
}

// larger returns the larger limit, where 0 is none.
func larger(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}
