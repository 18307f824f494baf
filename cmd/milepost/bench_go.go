package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// goBenchmark is one benchmark of go test -bench; several runs of it (-count) are one, by their medians.
type goBenchmark struct {
	Package string             `json:"package"`
	Name    string             `json:"name"` // without the number of processors
	Runs    int                `json:"runs"`
	Values  map[string]float64 `json:"values"` // by unit: ns/op, B/op, allocs/op and the benchmark's own
}

// readGoBenchmarks reads the output of go test -bench from a file; none where path is "".
func readGoBenchmarks(path string) ([]goBenchmark, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, milepost.Wrap("bench: go results", milepost.KindNotFound, err)
	}
	return parseGoBenchmarks(text)
}

func parseGoBenchmarks(text []byte) ([]goBenchmark, error) {
	const op = "bench: go results"
	type runs struct {
		goBenchmark
		values map[string][]float64
	}
	var all []*runs
	pkg := ""
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if p, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = strings.TrimPrefix(p, "github.com/milepost-rl/milepost/")
			continue
		}
		f := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") || len(f) < 4 || len(f)%2 != 0 {
			continue // ok, PASS, goos and the like, or the name of a benchmark that logged something
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		i := slices.IndexFunc(all, func(r *runs) bool { return r.Package == pkg && r.Name == name })
		if i < 0 {
			i = len(all)
			all = append(all, &runs{goBenchmark{Package: pkg, Name: name}, map[string][]float64{}})
		}
		all[i].Runs++
		for j := 2; j < len(f); j += 2 {
			v, err := strconv.ParseFloat(f[j], 64)
			if err != nil {
				return nil, milepost.E(op, milepost.KindCorrupt, "%q: %q is no number", line, f[j])
			}
			all[i].values[f[j+1]] = append(all[i].values[f[j+1]], v)
		}
	}
	if len(all) == 0 {
		return nil, milepost.E(op, milepost.KindCorrupt, "no line of the file is a benchmark's result")
	}
	var out []goBenchmark
	for _, r := range all {
		r.Values = map[string]float64{}
		for unit, v := range r.values {
			r.Values[unit] = spreadOf(v).Median
		}
		out = append(out, r.goBenchmark)
	}
	return out, nil
}

// siTime writes nanoseconds in a unit that leaves three digits.
func siTime(ns float64) string {
	for _, u := range []struct {
		name string
		ns   float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		if ns >= u.ns {
			return fmt.Sprintf("%.3g %s", ns/u.ns, u.name)
		}
	}
	return fmt.Sprintf("%.3g ns", ns)
}
