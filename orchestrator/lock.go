package orchestrator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
)

// Lock claims a folder for this process until release is called or the process ends, however it ends. The journal has
// a lock of its own, but whoever starts servers and trainer for a run must hold the folder before that: starting them
// ends what an earlier epoch left behind. A folder that another process holds is an error of kind conflict.
func Lock(dir string) (release func() error, err error) {
	const op = "orchestrator: lock"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(milepost.E(op, milepost.KindConflict, "%s is in use by %s; is this run already going? Wait for it, or give another run.dir",
			dir, holder(f)), f.Close())
	}
	if err := f.Truncate(0); err == nil { // a full disk: the lock holds all the same, only without a name
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f.Close, nil
}

// holder names the process that wrote itself into the lock file, for messages.
func holder(f io.Reader) string {
	b, _ := io.ReadAll(io.LimitReader(f, 32))
	if pid := strings.TrimSpace(string(b)); pid != "" {
		return "process " + pid
	}
	return "another process"
}
