package inject

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Shares says how many tasks get how many faults: share by number of faults, relative to each other.
type Shares map[int]float64

// Place says where the faults of one task lie.
type Place string

// The places.
const (
	PlaceAny     Place = "any"
	PlaceOneFile Place = "one_file" // all in one file
	PlaceFiles   Place = "files"    // each in another file
)

var places = []Place{PlaceAny, PlaceOneFile, PlaceFiles}

// maxFaults is the most faults of one task.
const maxFaults = 20

// Golang reports whether the package is a Go module.
func (c Config) Golang() bool { return modulePin.MatchString(c.Package) }

// name is the package without its version.
func (c Config) name() string {
	name, _, _ := strings.Cut(c.Package, "==")
	name, _, _ = strings.Cut(name, "@")
	return name
}

// sizes draws how many faults each of n tasks gets.
func (c Config) sizes(n int, rng *rand.Rand) []int {
	numbers, sum := slices.Sorted(maps.Keys(c.Shares)), 0.0
	for _, k := range numbers {
		sum += c.Shares[k]
	}
	out := make([]int, n)
	for i := range out {
		out[i] = c.Faults
		if sum == 0 {
			continue
		}
		at := rng.Float64() * sum
		for _, k := range numbers {
			if at -= c.Shares[k]; at < 0 {
				out[i] = k
				break
			}
		}
	}
	return out
}

// combine groups caught mutants into tasks of the wanted sizes: each fault in a function of its own within the task, none
// used twice, where the configuration says. What is left over makes further tasks of the same sizes, in case some do not
// hold.
func (m *maker) combine(caught []catch) [][]catch {
	var out [][]catch
	used := make([]bool, len(caught))
	for n := 0; ; n++ {
		set := m.collect(caught, used, m.sizes[n%len(m.sizes)])
		if set == nil && n >= len(m.sizes) {
			return out
		}
		if set != nil {
			out = append(out, set)
		}
	}
}

// collect takes the first unused faults that make a task of the given size, or none.
func (m *maker) collect(caught []catch, used []bool, size int) []catch {
	for i := range caught {
		if used[i] {
			continue
		}
		set, picked := []catch{caught[i]}, []int{i}
		for j := i + 1; j < len(caught) && len(set) < size; j++ {
			if !used[j] && m.goesWith(set, caught[j]) {
				set, picked = append(set, caught[j]), append(picked, j)
			}
		}
		if len(set) == size {
			for _, j := range picked {
				used[j] = true
			}
			return set
		}
	}
	return nil
}

// goesWith reports whether a fault may join others in a task.
func (m *maker) goesWith(set []catch, x catch) bool {
	for _, y := range set {
		same := x.Path == y.Path
		switch {
		case same && (x.Function == y.Function || m.cfg.Place == PlaceFiles):
			return false
		case !same && m.cfg.Place == PlaceOneFile:
			return false
		}
	}
	return !overlaps(set, x)
}
