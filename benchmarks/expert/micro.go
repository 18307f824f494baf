package expert

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/rollout"
)

// Config says how the expert behaves: probabilities, each from 0 to 1, and how much it reads.
type Config struct {
	Right      float64 `yaml:"right" json:"right"`           // chance that an edit writes the right line, else a plausible wrong one
	Shuffle    float64 `yaml:"shuffle" json:"shuffle"`       // it takes the faults in random order, else in that of the statement
	Search     float64 `yaml:"search" json:"search"`         // chance that it searches for the function though the statement names its file
	Distractor float64 `yaml:"distractor" json:"distractor"` // chance that it looks at another file first
	Undo       float64 `yaml:"undo" json:"undo"`             // chance that it takes a wrong edit back and draws again
	Skip       float64 `yaml:"skip" json:"skip"`             // chance that it leaves a fault as it is
	Around     int     `yaml:"around" json:"around"`         // lines read above and below a fault in a real package
}

// DefaultConfig is the expert of the small machine.
func DefaultConfig() Config {
	return Config{Right: .55, Shuffle: .1, Search: .1, Distractor: .05, Undo: .05, Around: 8}
}

func (c Config) validate() error {
	for name, p := range map[string]float64{"right": c.Right, "shuffle": c.Shuffle, "search": c.Search, "distractor": c.Distractor, "undo": c.Undo, "skip": c.Skip} {
		if !(p >= 0 && p <= 1) {
			return milepost.E("expert: configuration", milepost.KindInvalid, "%s is %g; allowed are 0 to 1", name, p)
		}
	}
	if c.Around < 0 || c.Around > 1000 {
		return milepost.E("expert: configuration", milepost.KindInvalid, "around is %d; allowed are 0 to 1000", c.Around)
	}
	return nil
}

// New makes the imperfect expert. What it plays depends on the statement.
//
// Where the statement reads as a micro task's, it takes the faults from it in random order; for each it finds and reads
// the file (again only where it has not seen it), works out the right line from the docstring, and replaces the faulty
// one. It never looks at the reference patch. With Right 1 and Skip 0 it resolves every micro task.
//
// Where the statement is a micro specification, it writes the functions one by one, each rightly, wrongly or not at all,
// by the specification's text alone (generate.go). With Right 1 and Skip 0 every hidden test passes.
//
// For any other task it is built from the reference patch, which demonstrations may know and a policy may not: for each
// changed place in random order it perhaps searches for what a failing test is named after, reads the lines around the
// place, and replaces them by the reference's or by a wrong variation. With Right 1 and Skip 0 it resolves every task
// whose replaced lines stand once in their file, as those of benchmarks/inject do.
//
// The zero Config is an expert that is always wrong.
func New(cfg Config) (*Model, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Model{write: func(o rollout.Opening) (script, error) {
		var complaints []complaint
		var specification []wanted
		for _, m := range o.Messages {
			if m.Role == rollout.RoleUser {
				complaints = append(complaints, readStatement(m.Content)...)
				specification = append(specification, readSpecification(m.Content)...)
			}
		}
		if len(specification) > 0 {
			return cfg.generateScript(specification), nil
		}
		if len(complaints) == 0 {
			return injectScript(cfg, o.Task)
		}
		e := &microExpert{cfg: cfg, complaints: complaints, files: map[string]string{}}
		return e.play, nil
	}}, nil
}

// complaint is one line of a statement. module is "" where only the function is named.
type complaint struct{ module, function string }

var complaintLine = regexp.MustCompile(`(?m)^(?:([a-z]+)\.)?([a-z]+)\(.*\) (?:gives|raises) .+, not .+\.$`)

func readStatement(text string) []complaint {
	var out []complaint
	for _, m := range complaintLine.FindAllStringSubmatch(text, -1) {
		out = append(out, complaint{m[1], m[2]})
	}
	return out
}

// microExpert is the state of one conversation.
type microExpert struct {
	cfg        Config
	complaints []complaint
	files      map[string]string // what it has read, as it was shown
	heard      []string          // files it knows of, in the order of hearing
}

func (e *microExpert) play(p *player) error {
	if p.chance(e.cfg.Shuffle) {
		p.rng.Shuffle(len(e.complaints), func(i, j int) { e.complaints[i], e.complaints[j] = e.complaints[j], e.complaints[i] })
	}
	for _, c := range e.complaints {
		if c.module != "" {
			e.hear(c.module + ".py")
		}
	}
	for _, c := range e.complaints {
		path := e.locate(p, c)
		if path == "" {
			continue // the search did not find it; there is nothing to go by
		}
		if p.chance(e.cfg.Distractor) {
			e.wander(p, path)
		}
		if _, ok := e.files[path]; !ok {
			e.files[path] = p.read(path)
		}
		if !p.chance(e.cfg.Skip) {
			e.repair(p, path, c.function)
		}
	}
	return nil
}

func (e *microExpert) hear(path string) {
	if !slices.Contains(e.heard, path) {
		e.heard = append(e.heard, path)
	}
}

var hit = regexp.MustCompile(`(?m)^([\w/]+\.py):\d+:`)

// locate finds the file of a function, by the statement or by a search.
func (e *microExpert) locate(p *player, c complaint) string {
	path := ""
	if c.module != "" {
		path = c.module + ".py"
	}
	if path != "" && (e.files[path] != "" || !p.chance(e.cfg.Search)) {
		return path
	}
	for _, m := range hit.FindAllStringSubmatch(p.do("search", searchArgs{"symbol", c.function}), -1) {
		e.hear(m[1])
		if path == "" && !strings.HasPrefix(m[1], "tests/") {
			path = m[1]
		}
	}
	return path
}

// wander reads a file that it knows of, has not read and does not need now.
func (e *microExpert) wander(p *player, path string) {
	var other []string
	for _, f := range e.heard {
		if _, ok := e.files[f]; !ok && f != path {
			other = append(other, f)
		}
	}
	if len(other) > 0 {
		f := other[p.rng.IntN(len(other))]
		e.files[f] = p.read(f)
	}
}

// repair edits one function as its docstring says, or wrongly.
func (e *microExpert) repair(p *player, path, name string) {
	fn, line, ok := findFunction(e.files[path], name)
	if !ok || line == fn.Right() {
		return
	}
	choice := e.choose(p.rng, fn, line)
	p.replace(path, line, choice)
	if choice != fn.Right() && p.chance(e.cfg.Undo) {
		p.undo()
		p.replace(path, line, e.choose(p.rng, fn, line))
	}
}

// choose draws the new line: the right one, or any wrong one but the line that is there.
func (e *microExpert) choose(rng *rand.Rand, fn micro.Function, line string) string {
	if rng.Float64() < e.cfg.Right {
		return fn.Right()
	}
	wrong := slices.DeleteFunc(fn.Wrong(), func(s string) bool { return s == line })
	return wrong[rng.IntN(len(wrong))]
}

var (
	defLine  = regexp.MustCompile(`\bdef (\w+)\(`)
	docLine  = regexp.MustCompile(`"""(.*)"""`)
	bodyLine = regexp.MustCompile(`\breturn .*$`)
)

// findFunction finds a function in a file as it was shown (with or without line numbers): what its docstring defines
// and the line that it returns by.
func findFunction(text, name string) (fn micro.Function, line string, ok bool) {
	current, doc := "", ""
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, " \r\n")
		if m := defLine.FindStringSubmatch(l); m != nil {
			current, doc = m[1], ""
		} else if m := docLine.FindStringSubmatch(l); m != nil {
			doc = m[1]
		} else if body := bodyLine.FindString(l); body != "" && current == name {
			fn, ok = micro.Read(name, doc)
			return fn, body, ok
		}
	}
	return fn, "", false
}
