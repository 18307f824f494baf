package rollout

import (
	"context"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// settled is what an action came to once the repository was looked at.
type settled struct {
	violation milepost.Violation
	rolled    string // why the action was rolled back, in words for the policy; "" where it stands
	changed   []string
}

// settle looks at the repository after an action that could write, and lets its changes stand or rolls them back:
//
//   - git's own data moved (HEAD, refs, config): a violation
//   - a protected path changed: a violation
//   - bash changed the repository under bash_writes: forbid: a violation
//   - the changes are more than a tree can hold (size, kinds of file): rolled back without blame
//
// The first that applies is named. Caches are in no tree, so they never count.
func (l *loop) settle(ctx context.Context, tool string) (settled, error) {
	moved, err := l.box.GitMoved(ctx)
	if err != nil {
		return settled{}, err
	}
	after, err := l.repo.take(ctx)
	if k := milepost.KindOf(err); k == milepost.KindLimit || k == milepost.KindInvalid {
		out := settled{rolled: "rolled back: " + toolcall.Why(err)}
		if moved {
			out.violation = milepost.ViolationHead
		}
		return out, l.repo.rollBack(ctx)
	}
	if err != nil {
		return settled{}, err
	}
	out := settled{changed: after.changed(l.repo.now)}
	hit := protectedOf(l.req.Task.Protected, out.changed)
	switch {
	case moved:
		out.violation, out.rolled = milepost.ViolationHead, "rolled back: HEAD and git's own data must not be moved"
	case hit != "":
		out.violation, out.rolled = milepost.ViolationProtected, fmt.Sprintf("rolled back: %s is protected and must not be changed", hit)
	case tools.IsShell(tool) && l.cfg.BashWrites == BashWritesForbid && len(out.changed) > 0:
		out.violation, out.rolled = milepost.ViolationBashWrite, fmt.Sprintf("rolled back: bash must not change the repository (%s); use %s", listing(out.changed), l.tools.Editor())
	default:
		l.repo.now = after
		return out, nil
	}
	out.changed = nil
	return out, l.repo.rollBack(ctx)
}

// protectedOf returns the first of the paths that a pattern protects, "" where none is. A pattern is a path or, with a
// slash at its end, a directory and all below it.
func protectedOf(patterns, paths []string) string {
	for _, p := range paths {
		for _, pattern := range patterns {
			if p == strings.TrimSuffix(pattern, "/") || (strings.HasSuffix(pattern, "/") && strings.HasPrefix(p, pattern)) {
				return p
			}
		}
	}
	return ""
}

// listing names the first paths of a list.
func listing(paths []string) string {
	const most = 3
	if len(paths) <= most {
		return strings.Join(paths, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(paths[:most], ", "), len(paths)-most)
}
