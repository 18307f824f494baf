package docker

import (
	"context"
	"fmt"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
)

// sandbox implements driver.Sandbox: one container. Its files and commands are package guest's.
type sandbox struct {
	*guest.Sandbox // nil until the container runs
	e              *engine
	id             string
	attached       *attached // nil until it is
	held           *held     // the base volume that it uses; nil for none
}

// Gone implements guest.Host: a container that ran out of memory as a whole is the task's doing and not the engine's.
func (s *sandbox) Gone() error {
	if s.e.ranOut(s.id) {
		return milepost.E("env/docker", milepost.KindMemory, "the container ran out of memory and ended")
	}
	return nil
}

// Said implements guest.Host.
func (s *sandbox) Said() string { return s.attached.complain.String() }

// Kills implements guest.Host: the agent sees the container's own control group.
func (s *sandbox) Kills() int64 { return 0 }

// Limit implements guest.Host.
func (s *sandbox) Limit(ctx context.Context, want guest.Limits, l driver.Limits) error {
	r := resources(want)
	if want.Memory == 0 {
		r.Memory, r.MemorySwap = -1, -1
	}
	if want.Procs == 0 {
		none := int64(-1)
		r.PidsLimit = &none
	}
	if _, err := s.e.cli.ContainerUpdate(ctx, s.id, container.UpdateConfig{Resources: r}); err != nil {
		if strings.Contains(err.Error(), "device or resource busy") || strings.Contains(err.Error(), "current usage:") { // the kernel's words, runc's
			return fmt.Errorf("the files in the sandbox take more than the %d bytes of memory that the command may use: %w", l.Memory, driver.ErrFull)
		}
		return goneError(fmt.Sprintf("limit the container to %d bytes and %d processes", want.Memory, want.Procs), err)
	}
	return nil
}

// Close implements driver.Sandbox. Ending the container ends its commands.
func (s *sandbox) Close() error {
	if s.Sandbox != nil {
		s.Closing()
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := s.e.remove(ctx, s.id)
	switch {
	case s.Sandbox != nil:
		s.Ended()
	case s.attached != nil:
		_ = s.attached.Close() // never fails
	}
	if err == nil {
		s.e.forget(s)
	}
	return err
}
