package agent

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	agentMemory  = 40 << 20 // bytes at which the collector works harder
	spareThreads = 16       // threads made before a command can use up the container's process limit
)

// Overhead is what the agent and the supervisors add to a container's limits: processes (threads count) and bytes.
const (
	OverheadProcs  = 48
	OverheadMemory = 96 << 20
)

// protect makes process 1 hard to harm for commands, which run as the same user: its memory and descriptors are closed
// to them, signals of theirs do not reach it, and it needs no further thread when none can be had.
func protect() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl dumpable: %w", err)
	}
	runtime.GOMAXPROCS(2)
	debug.SetMemoryLimit(agentMemory)
	if err := defaultSignals(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range spareThreads {
		wg.Go(func() {
			ts := syscall.NsecToTimespec(int64(20 * time.Millisecond))
			_ = syscall.Nanosleep(&ts, nil) // a blocking system call holds its thread; the runtime keeps it for later
		})
	}
	wg.Wait()
	return nil
}

// defaultSignals gives signals their default action, which the kernel does not carry out on process 1 of a namespace when
// they come from inside. The Go runtime's own handlers would end the program. Two are needed: SIGCHLD and the runtime's
// SIGURG.
func defaultSignals() error {
	var act struct { // struct sigaction of the kernel, all zero: SIG_DFL
		handler, flags, restorer, mask uintptr
	}
	for sig := 1; sig <= 64; sig++ {
		switch syscall.Signal(sig) {
		case unix.SIGCHLD, unix.SIGURG, unix.SIGKILL, unix.SIGSTOP, 32, 33, 34: // 32 to 34 are the C library's and the runtime's
			continue
		}
		if _, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0); e != 0 {
			return fmt.Errorf("sigaction %d: %w", sig, e)
		}
	}
	return nil
}

// offerToOOM makes this process and its children the first to go where memory runs out. It must be called before the
// process is protected, which would close the file to it.
func offerToOOM() error {
	return os.WriteFile("/proc/self/oom_score_adj", []byte("900"), 0)
}
