package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
)

// engineError gives an engine's answer its kind: what the configuration or the task asked for and cannot be had is the
// caller's; everything else is the infrastructure's, which alone is tried again.
func engineError(what string, err error) error {
	const op = "env/docker"
	var own *milepost.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	case cerrdefs.IsNotFound(err):
		return milepost.E(op, milepost.KindNotFound, "%s: %w", what, err)
	case cerrdefs.IsInvalidArgument(err):
		return milepost.E(op, milepost.KindInvalid, "%s: %w", what, err)
	case cerrdefs.IsPermissionDenied(err), cerrdefs.IsUnauthorized(err):
		return milepost.E(op, milepost.KindDenied, "%s: %w", what, err)
	}
	return milepost.E(op, milepost.KindUnavailable, "%s: %w", what, err)
}

// goneError is engineError where nothing that the caller named can be missing: somebody took away what the driver made.
func goneError(what string, err error) error {
	if cerrdefs.IsNotFound(err) {
		return milepost.E("env/docker", milepost.KindUnavailable, "%s: %w", what, err)
	}
	return engineError(what, err)
}

// infra reports whether an error is worth another engine.
func infra(err error) bool {
	var e *milepost.Error
	if errors.As(err, &e) {
		return e.Kind.Infra()
	}
	for _, callers := range []error{context.Canceled, context.DeadlineExceeded, driver.ErrInvalid, driver.ErrFull, driver.ErrEscapes, fs.ErrNotExist} {
		if errors.Is(err, callers) {
			return false
		}
	}
	return err != nil
}
