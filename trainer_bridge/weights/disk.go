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

// Exclusive implements [Method]: servers read side by side.
func (Disk) Exclusive() bool { return false }

// Check implements [Method].
func (Disk) Check(w Weights) error { return checkDirectory(w.Dir, "servers") }

// checkDirectory refuses a directory without weights, and one that the others who must see it would look for elsewhere.
func checkDirectory(dir, who string) error {
	const op = "weights: push"
	if !filepath.IsAbs(dir) {
		return milepost.E(op, milepost.KindInvalid, "directory %q is not absolute; %s have working directories of their own", dir, who)
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "*.safetensors")); len(found) == 0 {
		return milepost.E(op, milepost.KindNotFound, "directory %s has no *.safetensors", dir)
	}
	return nil
}

// Prepare implements [Method]: there is nothing to do ahead.
func (Disk) Prepare(context.Context, *vllm.Client, Weights) error { return nil }

// Load implements [Method].
func (Disk) Load(ctx context.Context, server *vllm.Client, w Weights) error {
	return server.Reload(ctx, w.Dir)
}
