// Package owner says who made something that outlives a process: which process, of which start of which machine. Drivers
// write it down beside what they make, and collect what a dead owner left.
package owner

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Process names a process; a process id alone would be reused.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot, of /proc/PID/stat
	Boot  string `json:"boot"`  // of the machine; "" where the kernel does not tell: then the start time alone decides
}

// Boot identifies this start of this machine.
var Boot = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // see Process.Boot
	return strings.TrimSpace(string(b))
})

// Space identifies the namespace in which process ids of this process count: ids of another say nothing here.
var Space = sync.OnceValue(func() string {
	target, _ := os.Readlink("/proc/self/ns/pid") // "" where the kernel has no such namespaces
	return target
})

// Current names this process.
func Current() (Process, error) {
	start, err := StartTime(os.Getpid())
	return Process{PID: os.Getpid(), Start: start, Boot: Boot()}, err
}

// Alive reports whether the process still runs, as seen from its own machine and namespace.
func (p Process) Alive() bool {
	if p.Boot != Boot() {
		return false
	}
	start, err := StartTime(p.PID)
	return err == nil && start == p.Start
}

// StartTime returns field 22 of /proc/PID/stat.
func StartTime(pid int) (string, error) {
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	b, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	i := strings.LastIndex(string(b), ") ") // the name before it may itself hold ") "
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return "", fmt.Errorf("%s: %d fields", name, len(f))
	}
	return f[19], nil
}
