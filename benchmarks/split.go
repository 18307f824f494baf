package benchmarks

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// By says what stays together when a set is split.
type By string

// What stays together.
const (
	ByTask By = "task" // nothing: each task goes its own way
	ByRepo By = "repo" // all tasks of a repository
)

// Ratio is one part of a split.
type Ratio struct {
	Name  string  // becomes the folder's name and Task.Split
	Share float64 // relative to the other parts; more than 0
}

// ParseRatios reads "train=8,validation=1,heldout=1".
func ParseRatios(s string) ([]Ratio, error) {
	const op = "benchmarks: split"
	var out []Ratio
	for part := range strings.SplitSeq(s, ",") {
		name, share, ok := strings.Cut(strings.TrimSpace(part), "=")
		r := Ratio{Name: name}
		if _, err := fmt.Sscanf(share, "%g", &r.Share); !ok || err != nil || !(r.Share > 0 && r.Share <= 1e9) || !taskID.MatchString(name) {
			return nil, milepost.E(op, milepost.KindInvalid, "ratio %q is not NAME=SHARE with a share of more than 0, such as train=8", part)
		}
		if slices.ContainsFunc(out, func(o Ratio) bool { return o.Name == name }) {
			return nil, milepost.E(op, milepost.KindInvalid, "ratio %q comes twice", name)
		}
		out = append(out, r)
	}
	if len(out) < 2 {
		return nil, milepost.E(op, milepost.KindInvalid, "%q is one part; at least two are wanted, such as train=9,heldout=1", s)
	}
	return out, nil
}

// RepoOf names the repository a task is about: upstream's, where it was imported, without regard to case; else its place.
func RepoOf(t *milepost.Task) string {
	if t.Origin != nil && t.Origin.Repo != "" {
		return strings.ToLower(t.Origin.Repo)
	}
	if t.Origin != nil {
		return t.Origin.ID // without a repository's name, a task stands alone
	}
	return t.Repo + "@" + t.BaseTree
}

// Split deals the tasks of a set into one new set a part, below dir, and returns how many each got. The same seed gives
// the same parts. Whole groups go, the greatest first, each to the part that is furthest below its share, so that shares
// hold as well as groups allow; no group is in two parts. Imported rows and
// certificates go with their tasks.
func Split(set, dir string, ratios []Ratio, by By, seed uint64) (map[string]int, error) {
	const op = "benchmarks: split"
	groups := map[string][]string{} // ids by what stays together
	err := Each(set, func(t *milepost.Task) error {
		key := t.ID
		if by == ByRepo {
			key = RepoOf(t)
		}
		groups[key] = append(groups[key], t.ID)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(groups) < len(ratios) {
		return nil, milepost.E(op, milepost.KindInvalid, "%s has %d %s to deal out, fewer than the %d parts", set, len(groups), plural(by), len(ratios))
	}
	part := deal(groups, ratios, seed)
	writers := map[string]*Writer{}
	defer func() {
		for _, w := range writers {
			w.Abort()
		}
	}()
	for _, r := range ratios {
		if writers[r.Name], err = NewWriter(filepath.Join(dir, r.Name)); err != nil {
			return nil, err
		}
	}
	counts, ids := map[string]int{}, map[string]map[string]bool{}
	err = eachWithRow(set, func(t *milepost.Task, row *Row) error {
		name := part[t.ID]
		t.Split = name
		if counts[name]++; ids[name] == nil {
			ids[name] = map[string]bool{}
		}
		ids[name][t.ID] = true
		return writers[name].Add(t, row)
	})
	if err != nil {
		return nil, err
	}
	for _, r := range ratios {
		if err := carryCertificates(writers[r.Name].Dir(), ids[r.Name], set); err != nil {
			return nil, err
		}
		if err := writers[r.Name].Commit(); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

func plural(by By) string {
	if by == ByRepo {
		return "repositories"
	}
	return "tasks"
}

// deal assigns every id to a part.
func deal(groups map[string][]string, ratios []Ratio, seed uint64) map[string]string {
	keys := make([]string, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	rand.New(rand.NewPCG(seed, hashOf("split"))).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(len(groups[b]), len(groups[a])) })
	got := make([]int, len(ratios))
	part := map[string]string{}
	for n, k := range keys {
		best, last := -1, len(keys)-n <= countEmpty(got) // every part gets something
		for i, r := range ratios {
			if last && got[i] > 0 {
				continue
			}
			if best < 0 || float64(got[i])/r.Share < float64(got[best])/ratios[best].Share {
				best = i
			}
		}
		got[best] += len(groups[k])
		for _, id := range groups[k] {
			part[id] = ratios[best].Name
		}
	}
	return part
}

func countEmpty(got []int) (n int) {
	for _, g := range got {
		if g == 0 {
			n++
		}
	}
	return n
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

// eachWithRow is [Each] with the row of each task, nil where the set keeps none.
func eachWithRow(set string, use func(*milepost.Task, *Row) error) error {
	const op = "benchmarks: rows"
	file, err := tasksFile(set)
	if err != nil {
		return err
	}
	name := filepath.Join(filepath.Dir(file), RowsFile)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return Each(set, func(t *milepost.Task) error { return use(t, nil) })
	}
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer f.Close()
	dec := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	var ahead *Row // read, and of a later task
	err = Each(set, func(t *milepost.Task) error {
		if ahead == nil && dec.More() {
			ahead = new(Row)
			if err := dec.Decode(ahead); err != nil {
				return milepost.E(op, milepost.KindCorrupt, "%s before the row of task %s: %w", name, t.ID, err)
			}
		}
		if ahead == nil || ahead.Task != t.ID { // made, or imported without a row
			return use(t, nil)
		}
		row := ahead
		ahead = nil
		return use(t, row)
	})
	if err == nil && ahead != nil {
		err = milepost.E(op, milepost.KindCorrupt, "%s: the row of task %q belongs to no task at its place; rows stand in the order of the tasks", name, ahead.Task)
	}
	return err
}
