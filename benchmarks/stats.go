package benchmarks

import (
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// Stats are sums over a task set.
type Stats struct {
	Tasks        int            `json:"tasks"`
	Splits       map[string]int `json:"splits"`
	Trees        int            `json:"trees"`         // different base trees
	Tests        Range          `json:"tests"`         // tests in a task
	FailToPass   Range          `json:"fail_to_pass"`  // failing tests in a task
	PatchedFiles Range          `json:"patched_files"` // files the reference patch touches
	Statement    Range          `json:"statement"`     // bytes of the statement
	Patch        Range          `json:"patch"`         // bytes of the reference patch
	Families     map[string]int `json:"families"`      // faults of each family, from Task.Meta
}

// Range is the least, mean and greatest of a number over a task set.
type Range struct {
	Min  int     `json:"min"`
	Mean float64 `json:"mean"`
	Max  int     `json:"max"`
}

// MetaFamilies is the key of Task.Meta under which makers list the fault families of a task, separated by commas, one
// for each fault.
const MetaFamilies = "families"

// Summarise sums up a task set.
func Summarise(tasks []*milepost.Task) Stats {
	s := Stats{Tasks: len(tasks), Splits: map[string]int{}, Families: map[string]int{}}
	trees := map[string]bool{}
	for _, t := range tasks {
		s.Splits[t.Split]++
		trees[t.BaseTree] = true
		if list := t.Meta[MetaFamilies]; list != "" {
			for f := range strings.SplitSeq(list, ",") {
				s.Families[f]++
			}
		}
	}
	s.Trees = len(trees)
	s.Tests = rangeOf(tasks, func(t *milepost.Task) int { return len(t.Tests) })
	s.FailToPass = rangeOf(tasks, func(t *milepost.Task) int { return len(t.FailToPass) })
	s.PatchedFiles = rangeOf(tasks, func(t *milepost.Task) int { return len(t.RelevantFiles) })
	s.Statement = rangeOf(tasks, func(t *milepost.Task) int { return len(t.Statement) })
	s.Patch = rangeOf(tasks, func(t *milepost.Task) int { return len(t.ReferencePatch) })
	return s
}

func rangeOf(tasks []*milepost.Task, f func(*milepost.Task) int) Range {
	if len(tasks) == 0 {
		return Range{}
	}
	var all []int
	sum := 0
	for _, t := range tasks {
		all = append(all, f(t))
		sum += f(t)
	}
	return Range{slices.Min(all), float64(sum) / float64(len(tasks)), slices.Max(all)}
}
