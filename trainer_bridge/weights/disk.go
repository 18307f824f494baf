package weights

import (
	"context"
	"path/filepath"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// Disk lets each server read the directory, which it must see under the same path.
type Disk struct{}

var _ Method = Disk{}

// Name implements [Method].
func (Disk) Name() string { return MethodDisk }

// Check implements [Method].
func (Disk) Check(w Weights) error {
	const op = "weights: push"
	if !filepath.IsAbs(w.Dir) {
		return milepost.E(op, milepost.KindInvalid, "directory %q is not absolute; the servers have working directories of their own", w.Dir)
	}
	if found, _ := filepath.Glob(filepath.Join(w.Dir, "*.safetensors")); len(found) == 0 {
		return milepost.E(op, milepost.KindNotFound, "directory %s has no *.safetensors", w.Dir)
	}
	return nil
}

// Prepare implements [Method]: there is nothing to do ahead.
func (Disk) Prepare(context.Context, *vllm.Client, Weights) error { return nil }

// Load implements [Method].
func (Disk) Load(ctx context.Context, server *vllm.Client, w Weights) error {
	return server.Reload(ctx, w.Dir)
}
