package guest

import (
	"github.com/milepost-rl/milepost/env/dirfs"
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

// Room is how many bytes may be written: the growth of the workspace, 0 where it has no bound, and each other place, of at
// most tmp. Files count as memory, so all of them together stay below its limit.
func Room(l driver.Limits, tmp int64) (workspace, other int64) {
	workspace = l.Disk
	if l.Memory > 0 {
		tmp = min(tmp, l.Memory/4)
		if workspace == 0 || workspace > l.Memory/2 {
			workspace = l.Memory / 2
		}
	}
	return workspace, tmp
}

// FilesIn is how many files a place for so many bytes may hold: each takes a page at least, in places that are not tiny.
func FilesIn(bytes int64) int64 { return max(bytes/dirfs.PageSize, dirfs.PageSize) }
