package local

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/driver"
)

type rlimit struct {
	name  string
	which int
	value int64
}

// rlimits are the limits that the kernel keeps per process. Memory and processes are among them only where no control
// group keeps them for the command as a whole.
func rlimits(l driver.Limits, grouped bool) []rlimit {
	list := []rlimit{{"core", unix.RLIMIT_CORE, 0}, {"nofile", unix.RLIMIT_NOFILE, 4096}}
	if l.FileSize > 0 {
		list = append(list, rlimit{"fsize", unix.RLIMIT_FSIZE, l.FileSize})
	}
	if l.CPU > 0 {
		list = append(list, rlimit{"cpu", unix.RLIMIT_CPU, int64((l.CPU + time.Second - 1) / time.Second)})
	}
	if grouped {
		return list
	}
	if l.Memory > 0 {
		list = append(list, rlimit{"as", unix.RLIMIT_AS, l.Memory})
	}
	if l.Procs > 0 && os.Getuid() != 0 { // the kernel exempts root
		list = append(list, rlimit{"nproc", unix.RLIMIT_NPROC, int64(l.Procs)})
	}
	return list
}

// setRlimits bounds a process, which has not begun to work, and all its later children. What it inherits below a limit
// stays.
func setRlimits(pid int, l driver.Limits, grouped bool) error {
	for _, x := range rlimits(l, grouped) {
		var old unix.Rlimit
		if err := unix.Prlimit(pid, x.which, nil, &old); err != nil {
			return fmt.Errorf("rlimit %s: %w", x.name, err)
		}
		v := min(uint64(x.value), old.Max)
		if err := unix.Prlimit(pid, x.which, &unix.Rlimit{Cur: v, Max: v}, nil); err != nil {
			return fmt.Errorf("rlimit %s: %w", x.name, err)
		}
	}
	return nil
}
