package expert

import (
	"regexp"

	"github.com/milepost-rl/milepost/benchmarks/micro"
)

// wanted is one line of a micro specification.
type wanted struct{ path, signature, name, doc string }

var wantedLine = regexp.MustCompile(`(?m)^([a-z]+)\.([a-z]+)(\([a-z, ]+\)): (.+)$`)

func readSpecification(text string) []wanted {
	var out []wanted
	for _, m := range wantedLine.FindAllStringSubmatch(text, -1) {
		out = append(out, wanted{path: m[1] + ".py", signature: m[2] + m[3], name: m[2], doc: m[4]})
	}
	return out
}

// generateScript writes the functions of a specification one after the other: the first of a file creates it, each
// further one is put at its start. Consecutive changes of one file are what probes are merged over.
func (cfg Config) generateScript(all []wanted) script {
	return func(p *player) error {
		if p.chance(cfg.Shuffle) {
			p.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		there := map[string]bool{}
		for _, w := range all {
			fn, ok := micro.Read(w.name, w.doc)
			if !ok || p.chance(cfg.Skip) {
				continue
			}
			right := p.chance(cfg.Right)
			w.write(p, fn, right, there[w.path])
			if !right && p.chance(cfg.Undo) {
				p.undo()
				w.write(p, fn, p.chance(cfg.Right), there[w.path])
			}
			there[w.path] = true
		}
		return nil
	}
}

// write writes one function, rightly or not, into a file that is there or not.
func (w wanted) write(p *player, fn micro.Function, right, there bool) {
	line := fn.Right()
	if wrong := fn.Wrong(); !right {
		line = wrong[p.rng.IntN(len(wrong))]
	}
	text := "def " + w.signature + ":\n    " + line
	if there {
		p.do("edit_file", insertArgs{"insert", w.path, 0, text})
	} else {
		p.do("edit_file", createArgs{"create", w.path, text})
	}
}
