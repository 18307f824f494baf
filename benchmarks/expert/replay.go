package expert

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// NewReference makes the model that applies the reference patch in one call and submits: it resolves every good task.
func NewReference() *Model {
	return &Model{write: func(o rollout.Opening) (script, error) {
		if o.Task == nil || o.Task.ReferencePatch == "" {
			return nil, milepost.E("expert: open", milepost.KindInvalid, "the opening has no task with a reference patch")
		}
		return func(p *player) error {
			p.do("edit_file", patchArgs{"apply_patch", o.Task.ReferencePatch})
			return nil
		}, nil
	}}
}

// NewIdle makes the model that submits at once: it resolves no good task.
func NewIdle() *Model {
	return &Model{write: func(rollout.Opening) (script, error) {
		return func(*player) error { return nil }, nil
	}}
}
