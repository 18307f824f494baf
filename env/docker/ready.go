package docker

import (
	"context"
	"errors"

	"github.com/milepost-rl/milepost"
)

// Ready returns nil where a sandbox may be had: an engine answers that is not being left alone. It does not wait. Kinds:
// unavailable.
func (d *Driver) Ready(ctx context.Context) error {
	var errs []error
	for _, e := range d.engines {
		if !e.healthy() {
			continue
		}
		err := e.ping(ctx)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return milepost.E("env/docker: ready", milepost.KindUnavailable, "no Docker engine is usable: %s", d.ailments())
	}
	return errors.Join(errs...)
}
