// Package benchmarks holds task sets: how they lie on disk (store.go, and writer.go for sets that are written one task at
// a time), how a task is proven to be one (check.go), how sets are split (split.go) and mixed (mix.go), and what the makers
// of tasks share (git repositories in git.go, reference patches in diff.go, sums in stats.go).
//
// Package dataset imports public data sets, grade judges patches by their rules, predictions reads and writes what other
// harnesses exchange.
//
// The makers are packages below: micro makes repositories for the small machine, inject puts faults into a real
// package from PyPI, mine finds fixes in git histories and between releases, generate asks for a package anew; pypkg is what
// those of real packages share. Package expert holds scripted models that solve such tasks, for demonstrations and for
// validation. A maker of a new kind of task is a new folder here, with a Make that ends in [Checker.Discover] and
// [Save]; nothing outside benchmarks knows its name but cmd/milepost.
//
// A task set is a folder with tasks.jsonl, one milepost.Task a line, and the repositories the tasks name by a path
// relative to that file. An imported set also has rows.jsonl, every row as it was read, and folders/ with files of single
// tasks; a mixture has mixture.yaml, which says how it was made.
package benchmarks
