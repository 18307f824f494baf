package docker

import (
	"context"
	"errors"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
)

// How long something of an owner on another machine must be there before it is taken for left behind: no owner leaves a
// container unstarted for so long, and one that runs ends by itself (see Config.Lease). An owner whose volume was taken
// while it had no sandbox makes a new one.
const (
	foreignContainer = 10 * time.Minute
	foreignVolume    = 24 * time.Hour
)

// reapAlways reaps every so often until ctx ends. Failures are tried again the next time.
func (e *engine) reapAlways(ctx context.Context) {
	ticker := time.NewTicker(e.d.cfg.Reap)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if e.healthy() {
				_ = e.reap(ctx)
			}
		}
	}
}

// reap collects what dead owners left on the engine, and what this driver itself failed to remove.
func (e *engine) reap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	mine := filters.NewArgs(filters.Arg("label", labelOwner))
	list, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: mine})
	if err != nil {
		return engineError("list containers", err)
	}
	var errs []error
	for _, c := range list {
		if e.abandoned(c, time.Now()) {
			errs = append(errs, e.remove(ctx, c.ID))
		}
	}
	volumes, err := e.cli.VolumeList(ctx, volume.ListOptions{Filters: mine})
	if err != nil {
		return errors.Join(append(errs, engineError("list volumes", err))...)
	}
	for _, v := range volumes.Volumes {
		if v.Labels[labelOwner] == e.d.me.name {
			continue
		}
		f := fateOf(v.Labels)
		if f == dead || f == elsewhere && age(v.Labels, time.Now()) > foreignVolume {
			err := e.cli.VolumeRemove(ctx, v.Name, false) // a volume in use is refused, and stays
			if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
				errs = append(errs, engineError("remove volume", err))
			}
		}
	}
	return errors.Join(errs...)
}

// abandoned reports whether nobody will remove the container.
func (e *engine) abandoned(c container.Summary, now time.Time) bool {
	if c.Labels[labelOwner] == e.d.me.name {
		e.mu.Lock()
		_, known := e.open[c.ID]
		e.mu.Unlock()
		return !known && age(c.Labels, now) > foreignContainer
	}
	switch fateOf(c.Labels) {
	case dead:
		return true
	case elsewhere:
		return c.State != "running" && age(c.Labels, now) > foreignContainer
	}
	return false
}
