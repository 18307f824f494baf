package benchmarks

import (
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// Stats are sums over a task set.
type Stats struct {
	Tasks        int            `json:"tasks"`
	Splits       map[string]int `json:"splits"`
	Trees        int            `json:"trees"`         // different base trees; of tasks in images, different images
	Tests        Range          `json:"tests"`         // tests in a task
	FailToPass   Range          `json:"fail_to_pass"`  // failing tests in a task
	PatchedFiles Range          `json:"patched_files"` // files the reference patch touches
	Statement    Range          `json:"statement"`     // bytes of the statement
	Patch        Range          `json:"patch"`         // bytes of the reference patch
	Families     map[string]int `json:"families"`      // faults of each family, from Task.Meta
	Repos        int            `json:"repositories"`  // different repositories, by [RepoOf]
	Datasets     map[string]int `json:"datasets"`      // tasks imported from each data set
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
	s := newSummer()
	for _, t := range tasks {
		s.add(t)
	}
	return s.stats()
}

// SummariseSet is [Summarise] for a set on disk, in memory that does not grow with the tasks' size.
func SummariseSet(path string) (Stats, error) {
	s := newSummer()
	err := Each(path, func(t *milepost.Task) error {
		s.add(t)
		return nil
	})
	return s.stats(), err
}

// summer adds tasks up.
type summer struct {
	s            Stats
	trees, repos map[string]bool
	sums         []int // of the ranges, in their order
}

func newSummer() *summer {
	return &summer{s: Stats{Splits: map[string]int{}, Families: map[string]int{}, Datasets: map[string]int{}},
		trees: map[string]bool{}, repos: map[string]bool{}, sums: make([]int, 5)}
}

func (m *summer) ranges() []*Range {
	return []*Range{&m.s.Tests, &m.s.FailToPass, &m.s.PatchedFiles, &m.s.Statement, &m.s.Patch}
}

func (m *summer) add(t *milepost.Task) {
	s := &m.s
	s.Splits[t.Split]++
	m.repos[RepoOf(t)] = true
	m.trees[treeOf(t)] = true
	if t.Origin != nil {
		s.Datasets[t.Origin.Dataset]++
	}
	if list := t.Meta[MetaFamilies]; list != "" {
		for f := range strings.SplitSeq(list, ",") {
			s.Families[f]++
		}
	}
	numbers := []int{len(t.Tests), len(t.FailToPass), len(t.RelevantFiles), len(t.Statement), len(t.ReferencePatch)}
	for i, r := range m.ranges() {
		n := numbers[i]
		if s.Tasks == 0 {
			r.Min = n
		}
		r.Min, r.Max = min(r.Min, n), max(r.Max, n)
		m.sums[i] += n
	}
	s.Tasks++
}

func (m *summer) stats() Stats {
	for i, r := range m.ranges() {
		if m.s.Tasks > 0 {
			r.Mean = float64(m.sums[i]) / float64(m.s.Tasks)
		}
	}
	m.s.Trees, m.s.Repos = len(m.trees), len(m.repos)
	return m.s
}
