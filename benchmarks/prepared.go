package benchmarks

import (
	milepost "github.com/milepost-rl/milepost"
)

// RequirePrepared refuses a set in which the repository of a task still lies in its image alone: agents and probes start
// from a base. The error, KindConflict, names the first such task and what to do.
func RequirePrepared(set string, tasks []*milepost.Task) error {
	var first *milepost.Task
	n := 0
	for _, t := range tasks {
		if !t.Prepared() {
			if n++; first == nil {
				first = t
			}
		}
	}
	if first == nil {
		return nil
	}
	return milepost.E("benchmarks: load", milepost.KindConflict,
		"%s: %d of %d tasks are not prepared: their repository lies in their image (%s: %s in %s); run: milepost tasks prepare %s",
		set, n, len(tasks), first.ID, first.Workdir, first.Image, set)
}
