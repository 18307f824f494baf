package agent

import (
	"os"
	"strconv"
	"strings"
)

// oomCounter is the file in which the kernel counts the processes it killed for the container's memory; "" where there is
// none to be found.
type oomCounter string

// findOOMCounter looks in the places of control groups version 1 and 2.
func findOOMCounter() oomCounter {
	for _, p := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if _, ok := countKills(p); ok {
			return oomCounter(p)
		}
	}
	return ""
}

func (c oomCounter) read() int64 {
	n, _ := countKills(string(c))
	return n
}

func countKills(p string) (int64, bool) {
	text, err := os.ReadFile(p)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" {
			n, err := strconv.ParseInt(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
