package shadow

import (
	"fmt"
	"slices"

	"github.com/milepost-rl/milepost"
)

// Merging (credit: "Merged probes"): while the queue is behind, consecutive edits of one episode to the same files are
// verified together. A new step takes over the steps right before it, as long as no worker has begun their probe: the state
// after the last of them is tested, and all of them carry that probe, with [milepost.Merge] saying which part each is.
//
// A step joins the group before it only where all of this holds:
//   - the queue is behind: more than mergeBehind probes wait for each slot of the workers heard of;
//   - its index is one more than the group's last, so no step lies between them, as credit demands;
//   - it changed exactly the paths that the group's steps changed;
//   - the group has fewer than mergeMax steps, its probe has not begun, and no other episode shares it;
//   - it needs a probe of its own: neither the cache nor a probe under way answers it, and it is not the untouched tree.
//
// Whether the queue was behind depends on time, so two runs may merge differently. A barrier merges nothing: what it
// publishes again, after a resume, is verified step by step.

// lastStep is the last step that an episode asked for.
type lastStep struct {
	entry   *entry
	step    int
	delta   []milepost.TreeChange // from the base; the request's, not changed
	changed []string              // paths that the step changed, sorted
}

// follow notes r as the last step of its episode and returns the one before it, nil where there is none.
func (b *book) follow(r *milepost.ProbeRequest, e *entry) (before *lastStep) {
	if r.Kind != milepost.ProbeStep || b.mergeMax < 2 {
		return nil
	}
	before = b.tails[r.Episode]
	var from []milepost.TreeChange
	if before != nil {
		from = before.delta
	}
	b.tails[r.Episode] = &lastStep{entry: e, step: r.Step, delta: r.Delta, changed: changedPaths(from, r.Delta)}
	return before
}

// absorb makes f, the new flight of the episode's last step, take over the steps before it where the rules allow it.
// f.replaces is the flight that nobody needs any more then.
func (b *book) absorb(before *lastStep, f *flight) {
	e := f.waiters[0]
	own := b.tails[e.episode]
	if before == nil || own == nil || own.entry != e || f.req.Kind != milepost.ProbeStep || own.step != before.step+1 ||
		!slices.Equal(own.changed, before.changed) || len(own.changed) == 0 {
		return
	}
	g := before.entry.flight
	if g == nil || g.phase == phaseRunning || g.req.Kind != milepost.ProbeStep {
		return
	}
	group := g.group
	if group == nil {
		group = []*entry{before.entry}
	}
	if len(group) >= b.mergeMax || len(g.waiters) != len(group) || group[len(group)-1] != before.entry || !b.behind() {
		return
	}
	b.retire(g)
	for _, w := range g.waiters {
		w.flight = f
	}
	f.group = append(slices.Clone(group), e)
	f.waiters, g.waiters = slices.Clone(f.group), nil
	f.replaces = g
	b.stats.Merged++
}

// behind reports whether more probes wait than the slots are expected to keep up with. f itself, which waits too, counts.
func (b *book) behind() bool {
	waiting := 0
	for _, f := range b.flights {
		if f.phase != phaseRunning && !f.recheck {
			waiting++
		}
	}
	return float64(waiting) > b.mergeBehind*float64(max(b.slots, 1))
}

// mergeOf says which part of a merge group e is in f; nil where it is in none.
func (f *flight) mergeOf(e *entry) *milepost.Merge {
	i := slices.Index(f.group, e)
	if i < 0 {
		return nil
	}
	return &milepost.Merge{ID: f.group[len(f.group)-1].id, Size: len(f.group), Index: i}
}

// leaveGroup takes e, which is dropped, out of its merge group. Steps before it would no longer be consecutive with the
// rest, and their own states were never asked for: they end untrusted, continuity kept.
func (b *book) leaveGroup(f *flight, e *entry) {
	i := slices.Index(f.group, e)
	if i < 0 {
		return
	}
	earlier := f.group[:i]
	if f.group = f.group[i+1:]; len(f.group) < 2 {
		f.group = nil
	}
	for _, w := range earlier {
		f.waiters = slices.DeleteFunc(f.waiters, func(x *entry) bool { return x == w })
		b.end(w, &milepost.Probe{ID: w.id, Status: milepost.ProbeInfra, Continuity: milepost.ContinuityKept,
			Reason: fmt.Sprintf("was to be verified together with %s, which was replaced", e.id)})
		b.stats.Untrusted++
		b.stats.Infra++
	}
}

// changedPaths lists the paths in which two differences from one base differ; both are sorted by path, and so is the list.
func changedPaths(from, to []milepost.TreeChange) (out []string) {
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && from[0].Path < to[0].Path:
			out, from = append(out, from[0].Path), from[1:]
		case len(from) == 0 || to[0].Path < from[0].Path:
			out, to = append(out, to[0].Path), to[1:]
		default:
			if from[0] != to[0] {
				out = append(out, to[0].Path)
			}
			from, to = from[1:], to[1:]
		}
	}
	return out
}
