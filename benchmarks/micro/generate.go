package micro

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// The names. Short ones, from everyday book-keeping, that mean nothing for the repair; no function is named as a module.
var (
	moduleNames   = strings.Fields("tax pay bill cart mail news park road ship shop team tour unit user zoo bank book cash city farm food game gift home item jobs kit lab map menu oil pen pool deal rent room seat song tool club")
	functionNames = strings.Fields("fee due cut top low net rate part step turn grow drop fold pick take skip load fill size span gap edge core base mark note plan rank roll rule seal tag tick tier trim vote wage walk wash wrap zone apply blend bring build carry catch check clean close count cover draw drive enter")
)

// fault is one faulty function: which wrong body it has and the call that shows it.
type fault struct {
	module string
	fn     *drawn
	wrong  variant
	shown  example
}

// example is one input with the right value.
type example struct {
	in   args
	want value
}

// drawn is a function with its place and its tests.
type drawn struct {
	Function
	body  variant // what the untouched file has: right, or a wrong variant
	tests []example
}

// module is one Python file.
type module struct {
	name      string
	functions []*drawn
}

// world is one task before it is written.
type world struct {
	modules []module
	faults  []fault
}

// newRand seeds the generator of one attempt at one task; split is part of the seed.
func newRand(split string, seed int64, index, attempt int) *rand.Rand {
	h := sha256.Sum256(fmt.Appendf(nil, "micro/1/%s/%d/%d/%d", split, seed, index, attempt))
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])))
}

// draw makes one world.
func draw(cfg Config, rng *rand.Rand) *world {
	names := sample(rng, moduleNames, cfg.Files+cfg.Distractors)
	funcs := sample(rng, functionNames, len(names)*cfg.FunctionsPerFile)
	var broken map[place]Family
	if cfg.Kind == KindRepair {
		broken = placeFaults(cfg, rng)
	}
	w := &world{}
	for i, name := range names {
		m := module{name: name}
		for j := range cfg.FunctionsPerFile {
			fn := drawFunction(rng, funcs[i*cfg.FunctionsPerFile+j], j, broken[place{i, j}])
			fn.tests = chooseTests(rng, fn)
			m.functions = append(m.functions, fn)
			if fn.body.family != "" {
				w.faults = append(w.faults, fault{module: name, fn: fn, wrong: fn.body, shown: fn.tests[0]})
			}
		}
		w.modules = append(w.modules, m)
	}
	rng.Shuffle(len(w.modules), func(i, j int) { w.modules[i], w.modules[j] = w.modules[j], w.modules[i] })
	rng.Shuffle(len(w.faults), func(i, j int) { w.faults[i], w.faults[j] = w.faults[j], w.faults[i] })
	return w
}

// place is the position of a function: file and place in the file.
type place struct{ file, function int }

// placeFaults draws where the faults are and of which family: the files take turns, the families are equally likely.
func placeFaults(cfg Config, rng *rand.Rand) map[place]Family {
	out := map[place]Family{}
	free := make([][]int, cfg.Files)
	for i := range free {
		free[i] = rng.Perm(cfg.FunctionsPerFile)
	}
	for i := range cfg.Faults {
		file := i % cfg.Files
		out[place{file, free[file][0]}] = cfg.Families[rng.IntN(len(cfg.Families))]
		free[file] = free[file][1:]
	}
	return out
}

// drawFunction draws the position-th function of a file: healthy where fam is "", else with a fault of that family.
func drawFunction(rng *rand.Rand, name string, position int, fam Family) *drawn {
	for {
		f := &forms[rng.IntN(len(forms))]
		k := 0
		if f.hi >= f.lo {
			k = f.lo + rng.IntN(f.hi-f.lo+1)
		}
		fn := &drawn{Function: f.function(name, paramNames[f.shape][position], k)}
		fn.body = fn.right
		if fam == "" {
			return fn
		}
		var fits []variant
		for _, v := range fn.wrong {
			if v.family == fam {
				fits = append(fits, v)
			}
		}
		if len(fits) > 0 { // every family has several forms
			fn.body = fits[rng.IntN(len(fits))]
			return fn
		}
	}
}

const (
	minTests = 3
	maxTests = 5
)

// chooseTests draws the inputs that a function is tested on: together they tell the right body from every wrong one,
// so a wrong repair never passes and a wrong edit of a healthy function never goes unseen. For a faulty function the
// first one fails, and one that passes is among them where the fault leaves a case right, so that its repair has
// something to lose.
func chooseTests(rng *rand.Rand, fn *drawn) []example {
	pool := sample(rng, fn.pool, len(fn.pool))
	open := slices.Clone(fn.wrong)
	var tests []example
	take := func(i int) {
		e := example{pool[i], fn.right.eval(pool[i])}
		tests = append(tests, e)
		open = slices.DeleteFunc(open, func(v variant) bool { return v.eval(e.in) != e.want })
		pool = slices.Delete(pool, i, i+1)
	}
	differs := func(in args) bool { return fn.body.eval(in) != fn.right.eval(in) }
	if fn.body.expr != fn.right.expr {
		take(slices.IndexFunc(pool, differs))
	}
	for len(open) > 0 && len(tests) < maxTests {
		best, most := 0, -1
		for i, in := range pool {
			n := 0
			for _, v := range open {
				if v.eval(in) != fn.right.eval(in) {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		take(best)
	}
	passes := func(in args) bool { return !differs(in) }
	if !slices.ContainsFunc(tests, func(e example) bool { return passes(e.in) }) {
		if i := slices.IndexFunc(pool, passes); i >= 0 {
			take(i)
		}
	}
	for len(tests) < minTests && len(pool) > 0 {
		take(0)
	}
	return tests
}

// sample draws n different elements of s, in random order.
func sample[T any](rng *rand.Rand, s []T, n int) []T {
	out := slices.Clone(s)
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:n]
}
