// Package benchmarks holds task sets: how they lie on disk (store.go), how a task is proven to be one (check.go), and
// what the makers of tasks share (git repositories in git.go, reference patches in diff.go, sums in stats.go).
//
// The makers are packages below: micro makes repositories for the small machine, inject puts faults into a real
// package from PyPI. Package expert holds scripted models that solve such tasks, for demonstrations and for
// validation. A maker of a new kind of task is a new folder here, with a Make that ends in [Checker.Discover] and
// [Save]; nothing outside benchmarks knows its name but cmd/milepost.
//
// A task set is a folder with tasks.jsonl, one milepost.Task a line, and the repositories the tasks name by a path
// relative to that file.
package benchmarks
