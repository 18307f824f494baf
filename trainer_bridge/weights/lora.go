package weights

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// Beside is a Method whose weights lie in a server beside the ones it serves, under a name that requests choose. So a push
// stops nothing: no pause, no reset of caches, and the gate stays as it is until the canary, which asks for the new name,
// agreed. Requests of the pool name the new weights from the approval on; those under way end under the ones they began with.
type Beside interface {
	Method
	// Client makes the client whose requests are answered by a version's weights.
	Client(server *vllm.Client, version int32) *vllm.Client
}

// Lora lets each server load the adapter in the directory, which it must see under the same path. Version 0 is the base
// model, which servers were started with.
type Lora struct{}

var _ Beside = Lora{}

// Name implements [Method].
func (Lora) Name() string { return MethodLora }

// Exclusive implements [Method].
func (Lora) Exclusive() bool { return false }

// Check implements [Method].
func (Lora) Check(w Weights) error {
	if err := checkDirectory(w.Dir, "servers"); err != nil || w.Version == 0 {
		return err
	}
	if _, err := os.Stat(filepath.Join(w.Dir, "adapter_config.json")); err != nil {
		return milepost.E("weights: push", milepost.KindInvalid, "directory %s holds no adapter (adapter_config.json); weights.method lora needs one for every version but 0", w.Dir)
	}
	return nil
}

// Prepare implements [Method]: nothing is paused, so nothing is to be done ahead.
func (Lora) Prepare(context.Context, *vllm.Client, Weights) error { return nil }

// Client implements [Beside].
func (Lora) Client(server *vllm.Client, version int32) *vllm.Client { return server.Adapter(version) }

// Load implements [Method]. It first unloads what nothing names any more: every adapter but the newest below the version,
// which serves until this one is approved. An adapter of the version that is there already is of an earlier attempt or of
// the run's last start: it is loaded anew, and cached prefixes, which vLLM keys by name and path, are forgotten.
func (Lora) Load(ctx context.Context, server *vllm.Client, w Weights) error {
	loaded, err := server.Adapters(ctx)
	if err != nil {
		return err
	}
	var serving int32
	for _, v := range loaded {
		if v < w.Version {
			serving = max(serving, v)
		}
	}
	for _, v := range loaded {
		if v == serving {
			continue
		}
		if err := server.UnloadAdapter(ctx, v); err != nil && milepost.KindOf(err) != milepost.KindNotFound {
			return err
		}
	}
	if w.Version == 0 {
		return nil
	}
	if err := server.LoadAdapter(ctx, w.Version, w.Dir); err != nil || !slices.Contains(loaded, w.Version) {
		return err
	}
	return server.ResetPrefixCache(ctx, true)
}
