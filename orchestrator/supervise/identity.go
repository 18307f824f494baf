package supervise

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost"
)

// Identity names one process for good: a process id is used again, the id together with the start time is not.
// It is what the orchestrator journals at the start of a process.
type Identity struct {
	Name  string `json:"name"`  // of the Spec
	PID   int    `json:"pid"`   // also the id of its process group
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/PID/stat
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// String names the process for people.
func (id Identity) String() string { return fmt.Sprintf("%s (pid %d)", id.Name, id.PID) }

func identify(name string, pid int) (Identity, error) {
	s, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	return Identity{Name: name, PID: pid, Start: s.start, Boot: boot}, nil
}

// Alive reports whether exactly this process still runs.
func (id Identity) Alive() bool {
	if id.PID <= 1 || !id.thisBoot() {
		return false
	}
	s, err := readStat(id.PID)
	return err == nil && s.start == id.Start && !s.dead()
}

func (id Identity) thisBoot() bool {
	boot, err := bootID()
	return err == nil && boot == id.Boot
}

// group returns the living members of the process's group. The leader may be gone while members live on (an engine
// whose API server was killed); the kernel gives a group's id to no new process while the group has members, so they
// are the leader's, unless a later process of that id started, which the start time tells.
func (id Identity) group() ([]int, error) {
	if id.PID <= 1 || !id.thisBoot() {
		return nil, nil
	}
	if s, err := readStat(id.PID); err == nil && s.start != id.Start {
		return nil, nil // the id was given to another process since
	}
	pids, err := members(id.PID)
	if err != nil {
		return nil, err
	}
	mine := pids[:0]
	for _, pid := range pids {
		if s, err := readStat(pid); err == nil && s.start >= id.Start {
			mine = append(mine, pid)
		}
	}
	return mine, nil
}

// Reap ends what is left of the processes that an earlier run journaled and that nobody adopts: the whole group,
// politely first, after grace by force. It returns those of which something was still alive.
func Reap(ctx context.Context, ids []Identity, grace time.Duration) ([]Identity, error) {
	var reaped []Identity
	var errs []error
	for _, id := range ids {
		pids, err := id.group()
		if err != nil {
			errs = append(errs, milepost.E("supervise: reap", milepost.KindUnavailable, "%v: %w", id, err))
			continue
		}
		if len(pids) == 0 {
			continue
		}
		reaped = append(reaped, id)
		if err := stopGroup(ctx, id, grace); err != nil {
			errs = append(errs, err)
		}
	}
	return reaped, errors.Join(errs...)
}

// pollEvery is how often a group is looked at while it ends.
const pollEvery = 20 * time.Millisecond

// stopGroup sends SIGTERM to the group, waits up to grace for every member to end, then sends SIGKILL and waits again.
// A ctx that ends cuts the grace short; the group is killed all the same.
func stopGroup(ctx context.Context, id Identity, grace time.Duration) error {
	gone, err := signalAndWait(ctx, id, syscall.SIGTERM, grace)
	if gone || err != nil {
		return err
	}
	gone, err = signalAndWait(context.WithoutCancel(ctx), id, syscall.SIGKILL, 30*time.Second)
	if err == nil && !gone {
		err = milepost.E("supervise: stop", milepost.KindUnavailable, "%v: processes of its group are still there after SIGKILL", id)
	}
	return err
}

func signalAndWait(ctx context.Context, id Identity, sig syscall.Signal, bound time.Duration) (gone bool, err error) {
	end := time.Now().Add(bound)
	for first := true; ; first = false {
		pids, err := id.group()
		if err != nil {
			return false, milepost.E("supervise: stop", milepost.KindUnavailable, "%v: %w", id, err)
		}
		if len(pids) == 0 {
			return true, nil
		}
		if first || sig == syscall.SIGKILL { // a member that forked in between is killed in the next round
			if err := syscall.Kill(-id.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return false, milepost.E("supervise: stop", milepost.KindUnavailable, "%v: %v: %w", id, sig, err)
			}
		}
		if time.Now().After(end) {
			return false, nil
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return false, nil
		}
	}
}
