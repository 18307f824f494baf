package inject

import (
	"math"
	"path/filepath"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// Families are the families of faults. mutate.py knows all of them; of Go (gomutate.go) there are no
// default and class.
var Families = []string{"operator", "constant", "off_by_one", "swapped", "guard", "branch", "removed", "order", "chain", "exception", "default", "class", "variable"}

// Hint says how much the statement tells of the place of a fault.
type Hint string

// The hints.
const (
	HintNone     Hint = "none"     // the failing tests alone
	HintFile     Hint = "file"     // and the file of each fault
	HintFunction Hint = "function" // and its function
	HintLine     Hint = "line"     // and its line: for a policy too small to search
)

var (
	hints  = []Hint{HintNone, HintFile, HintFunction, HintLine}
	splits = []string{"", "train", "validation", "heldout"}
)

// Config says which tasks to make from which package. Zero fields take the default in brackets.
type Config struct {
	Package  string        `yaml:"package" json:"package"`     // NAME==VERSION on PyPI, or a Go module MODULE@vVERSION
	Count    int           `yaml:"count" json:"count"`         // how many tasks [10]
	Seed     int64         `yaml:"seed" json:"seed"`           // order in which faults are tried
	Split    string        `yaml:"split" json:"split"`         // train, validation, heldout: by function, so splits share none; "" takes all
	Faults   int           `yaml:"faults" json:"faults"`       // faults in a task, each in another function [1]; ignored where shares says more
	Shares   Shares        `yaml:"shares" json:"shares"`       // how many tasks get how many faults, as shares by number [all get faults]
	Place    Place         `yaml:"place" json:"place"`         // where several faults of a task lie: any, one_file, or files (each in another) [any]
	Families []string      `yaml:"families" json:"families"`   // families that faults are drawn from [all]
	Sources  []string      `yaml:"sources" json:"sources"`     // files to put faults into [every module that is no test]
	Tests    []string      `yaml:"tests" json:"tests"`         // test files to run [all that pytest finds]
	Hint     Hint          `yaml:"hint" json:"hint"`           // what the statement names besides tests [none]
	MaxFail  float64       `yaml:"max_fail" json:"max_fail"`   // largest share of the suite that one fault may break [.5]
	Image    string        `yaml:"image" json:"image"`         // environment identity written into the tasks [local:python3]
	Cache    string        `yaml:"cache" json:"cache"`         // folder of downloaded distributions; required
	Python   string        `yaml:"python" json:"python"`       // interpreter with pip that downloads and lists faults [python3]
	Go       string        `yaml:"go" json:"go"`               // go program, for Go modules [go]
	GoCache  string        `yaml:"go_cache" json:"go_cache"`   // folder of compiled packages that the sandbox shows read-only, for Go modules; "" = none: slow
	Timeout  time.Duration `yaml:"timeout" json:"timeout"`     // of one run of the tests [ten times the healthy run, at least 10 s]
	Workers  int           `yaml:"workers" json:"workers"`     // mutants tried at the same time [2]
	MaxTries int           `yaml:"max_tries" json:"max_tries"` // mutants tried at most [40 for each task and fault]
}

// Validate reports the first field that is out of range once zero fields have their defaults, as KindInvalid.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Count, 10)
	setDefault(&c.Faults, 1)
	setDefault(&c.Hint, HintNone)
	setDefault(&c.MaxFail, .5)
	setDefault(&c.Image, map[bool]string{false: "local:python3", true: "local:go"}[c.Golang()])
	setDefault(&c.Python, "python3")
	setDefault(&c.Go, "go")
	setDefault(&c.Place, PlaceAny)
	setDefault(&c.Workers, 2)
	most := c.Faults
	for k := range c.Shares {
		most = max(most, k)
	}
	setDefault(&c.MaxTries, 40*c.Count*most)
	if len(c.Families) == 0 {
		c.Families = Families
	}
	return c, c.validate()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) validate() error {
	bad := func(format string, a ...any) error {
		return milepost.E("inject: configuration", milepost.KindInvalid, format, a...)
	}
	switch {
	case !pypkg.Pinned(c.Package) && !c.Golang():
		return bad(`package %q is not NAME==VERSION, for example "toolz==1.0.0", or MODULE@vVERSION, for example "github.com/google/uuid@v1.6.0"`, c.Package)
	case !slices.Contains(places, c.Place):
		return bad("place %q is not one of %v", c.Place, places)
	case !slices.Contains(splits, c.Split):
		return bad("split %q is not one of %q", c.Split, splits)
	case !slices.Contains(hints, c.Hint):
		return bad("hint %q is not one of %v", c.Hint, hints)
	case c.Cache == "":
		return bad("cache is empty; a folder for downloaded distributions is wanted")
	case !(c.MaxFail > 0 && c.MaxFail < 1):
		return bad("max_fail is %g; allowed is more than 0 and less than 1", c.MaxFail)
	}
	for k, share := range c.Shares {
		if k < 1 || k > maxFaults || !(share >= 0) || math.IsInf(share, 0) {
			return bad("shares: %d=%v is not NUMBER=SHARE with 1 to %d faults and a share of 0 or more", k, share, maxFaults)
		}
	}
	for _, f := range c.Families {
		if !slices.Contains(Families, f) {
			return bad("families: %q is not one of %v", f, Families)
		}
	}
	for _, p := range slices.Concat(c.Sources, c.Tests) {
		if !filepath.IsLocal(p) {
			return bad("sources, tests: %q is not a path relative to the distribution", p)
		}
	}
	for _, x := range []struct {
		name          string
		value, lo, hi int
	}{{"count", c.Count, 1, 100000}, {"faults", c.Faults, 1, maxFaults}, {"workers", c.Workers, 1, 64}, {"max_tries", c.MaxTries, 1, 1 << 30}} {
		if x.value < x.lo || x.value > x.hi {
			return bad("%s is %d; allowed are %d to %d", x.name, x.value, x.lo, x.hi)
		}
	}
	return nil
}
