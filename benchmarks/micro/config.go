package micro

import (
	"slices"

	milepost "github.com/milepost-rl/milepost"
)

// Hint says how much the statement tells of the place of a fault.
type Hint string

// The hints.
const (
	HintModule   Hint = "module"   // "tax.fee(4) gives -3, not 11.": the file is known
	HintFunction Hint = "function" // "fee(4) gives -3, not 11.": the agent has to search for it
)

// Kind is what a micro task asks for.
type Kind string

// The kinds.
const (
	KindRepair   Kind = "repair"   // a repository with faults and its tests
	KindGenerate Kind = "generate" // a specification, an empty repository and hidden tests
)

// The splits of task sets. Which split a repository may belong to is decided by its tree id, so two splits can never
// share one, whatever their seeds.
const (
	SplitTrain      = "train"
	SplitValidation = "validation"
	SplitHeldout    = "heldout"
)

var splits = []string{SplitTrain, SplitValidation, SplitHeldout}

// Config says which tasks to make. The zero value of a field takes the default of [DefaultConfig].
type Config struct {
	Seed             int64    `yaml:"seed" json:"seed"`                             // any number; a pipeline fills it in from run.seed and the split
	Count            int      `yaml:"count" json:"count"`                           // how many tasks; a pipeline fills it in from demos, train, validation, heldout
	Split            string   `yaml:"split" json:"split"`                           // train, validation or heldout, which share no task; a pipeline fills it in
	Kind             Kind     `yaml:"kind" json:"kind"`                             // repair: faults and their tests; generate: a specification and hidden tests
	Faults           int      `yaml:"faults" json:"faults"`                         // repair: faults in a task, in as many files as there are
	Files            int      `yaml:"files" json:"files"`                           // modules that may have faults, or are to be written
	Distractors      int      `yaml:"distractors" json:"distractors"`               // repair: further modules, all healthy
	FunctionsPerFile int      `yaml:"functions_per_file" json:"functions_per_file"` // functions in each module, 1 to 4
	Families         []Family `yaml:"families" json:"families"`                     // families that faults are drawn from; empty: all
	Hint             Hint     `yaml:"hint" json:"hint"`                             // what the statement names: module or function
	Image            string   `yaml:"image" json:"image"`                           // environment identity written into the tasks
	Workers          int      `yaml:"workers" json:"workers"`                       // tasks checked at the same time
}

// DefaultConfig is the small machine's default: three faults in three files of two functions, and one more file.
func DefaultConfig() Config {
	return Config{Count: 100, Split: SplitTrain, Kind: KindRepair, Faults: 3, Files: 3, Distractors: 1, FunctionsPerFile: 2,
		Families: slices.Clone(Families), Hint: HintModule, Image: "local:python3", Workers: 2}
}

// Validate reports the first field that is out of range once zero fields have their defaults, as KindInvalid.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills the zero fields and validates the result. Distractors and Seed have no default to fill in: 0 is 0.
func (c Config) withDefaults() (Config, error) {
	d := DefaultConfig()
	setInt(&c.Count, d.Count)
	setInt(&c.Faults, d.Faults)
	setInt(&c.Files, d.Files)
	setInt(&c.FunctionsPerFile, d.FunctionsPerFile)
	setInt(&c.Workers, d.Workers)
	if c.Split == "" {
		c.Split = d.Split
	}
	if c.Kind == "" {
		c.Kind = d.Kind
	}
	if c.Kind == KindGenerate { // every function is to be written, and there is nothing else
		c.Faults, c.Distractors = c.Files*c.FunctionsPerFile, 0
	}
	if c.Hint == "" {
		c.Hint = d.Hint
	}
	if c.Image == "" {
		c.Image = d.Image
	}
	if len(c.Families) == 0 {
		c.Families = d.Families
	}
	return c, c.validate()
}

func setInt(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

func (c Config) validate() error {
	bad := func(format string, a ...any) error {
		return milepost.E("micro: configuration", milepost.KindInvalid, format, a...)
	}
	if !slices.Contains(splits, c.Split) {
		return bad("split %q is not one of %v", c.Split, splits)
	}
	if c.Kind != KindRepair && c.Kind != KindGenerate {
		return bad("kind %q is not one of [%s %s]", c.Kind, KindRepair, KindGenerate)
	}
	if c.Hint != HintModule && c.Hint != HintFunction {
		return bad("hint %q is not one of [%s %s]", c.Hint, HintModule, HintFunction)
	}
	for _, f := range c.Families {
		if !slices.Contains(Families, f) {
			return bad("families: %q is not one of %v", f, Families)
		}
	}
	for _, x := range []struct {
		name          string
		value, lo, hi int
	}{
		{"count", c.Count, 1, 100000},
		{"functions_per_file", c.FunctionsPerFile, 1, maxFunctions},
		{"files", c.Files, 1, 8},
		{"distractors", c.Distractors, 0, 8},
		{"faults", c.Faults, 1, c.Files * c.FunctionsPerFile},
		{"workers", c.Workers, 1, 64},
	} {
		if x.value < x.lo || x.value > x.hi {
			return bad("%s is %d; allowed are %d to %d", x.name, x.value, x.lo, x.hi)
		}
	}
	return nil
}
