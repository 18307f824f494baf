package configs

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
)

// Ablation is a study: arms that differ in stated settings, each run once a seed under one budget from a shared cold
// start, and how they are compared. `milepost ablate` carries it out.
type Ablation struct {
	Name      string   `yaml:"name"`      // names the study in its report
	Base      string   `yaml:"base"`      // configuration that every arm starts from: a shipped one, or a file (relative to this one)
	Set       []string `yaml:"set"`       // overrides for every arm, section.field=value each
	Arms      []Arm    `yaml:"arms"`      // what is compared
	Grid      []Axis   `yaml:"grid"`      // further arms: every combination of one level of each axis, named LEVEL_LEVEL
	Reference string   `yaml:"reference"` // the arm that the others are compared with
	Seeds     []int64  `yaml:"seeds"`     // of the training runs; every arm runs with each, and seeds are paired over arms
	Budget    Budget   `yaml:"budget"`    // of every run
	Search    Search   `yaml:"search"`    // of the learning rate, the same for every arm
	Heldout   Heldout  `yaml:"heldout"`   // measurements on the held-out tasks
	Compare   Compare  `yaml:"compare"`   // the statistics
}

// Arm is one variant.
type Arm struct {
	Name  string   `yaml:"name"`  // lower-case letters, digits and _; unique
	About string   `yaml:"about"` // one line for the report
	Set   []string `yaml:"set"`   // overrides on top of the study's
}

// Axis is one dimension of a grid, such as the estimator.
type Axis struct {
	Name   string `yaml:"name"`   // of the dimension, for messages
	Levels []Arm  `yaml:"levels"` // its values
}

// Budget bounds a run; it ends at whichever is reached first.
type Budget struct {
	Updates int   `yaml:"updates"` // updates, all of the same number of episodes
	Tokens  int64 `yaml:"tokens"`  // sampled training tokens; 0 = no bound
}

// Search is the learning-rate search: every arm tries every rate with every seed, and takes the rate with the highest mean
// resolved share over the last half of the updates, on training tasks. With a single rate there is nothing to search.
type Search struct {
	Rates   []float64 `yaml:"rates"`   // learning rates tried
	Seeds   []int64   `yaml:"seeds"`   // of the trials; none may be a seed of the study
	Updates int       `yaml:"updates"` // of a trial
}

// Heldout is how often and how thoroughly the held-out tasks are tried.
type Heldout struct {
	Every   int   `yaml:"every"`   // updates between points of the held-out curve; 0 = only at the end
	Samples int   `yaml:"samples"` // attempts at each task for a point of the curve
	Final   int   `yaml:"final"`   // attempts at each task before and after a run
	Seed    int64 `yaml:"seed"`    // of the evaluations, shared by all runs
}

// Compare is how arms are compared.
type Compare struct {
	Resamples  int     `yaml:"resamples"`  // of the paired bootstrap
	Confidence float64 `yaml:"confidence"` // of the intervals
	Correction string  `yaml:"correction"` // for multiple comparisons: holm, bh or none
	Seed       int64   `yaml:"seed"`       // of the resampling
}

// DefaultAblation is every default of a study.
func DefaultAblation() Ablation {
	return Ablation{
		Name: "ablation", Base: "quickstart", Seeds: []int64{11, 12, 13}, Budget: Budget{Updates: 40},
		Search:  Search{Seeds: []int64{1}, Updates: 12},
		Heldout: Heldout{Every: 10, Samples: 1, Final: 4, Seed: 7},
		Compare: Compare{Resamples: 10000, Confidence: .95, Correction: "holm", Seed: 1},
	}
}

//go:embed ablations/*.yaml
var shippedAblations embed.FS

// AblationNames lists the shipped studies, without ".yaml".
func AblationNames() []string {
	names, _ := fs.Glob(shippedAblations, "ablations/*.yaml") // the pattern is constant and well formed
	for i, n := range names {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(n, "ablations/"), ".yaml")
	}
	slices.Sort(names)
	return names
}

// AblationOverride is what a command line puts on top of a study.
type AblationOverride struct {
	Set   []string // section.field=value of every arm's configuration
	Study []string // field=value of the study itself
}

// LoadAblation reads a study by file or shipped name, puts overrides on top and validates it with the configuration of
// every arm. An error is of kind invalid and names file and line, the field and what is allowed, or the arm.
func LoadAblation(name string, o AblationOverride) (Ablation, error) {
	const op = "configs: ablation"
	a := DefaultAblation()
	file, text, err := ablationSource(name)
	if err != nil {
		return a, err
	}
	if err := a.read(document{name: file, file: file}, text); err != nil {
		return a, err
	}
	for _, setting := range o.Study {
		text, err := override(setting)
		if err != nil {
			return a, milepost.E(op, milepost.KindInvalid, "%s", strings.Replace(inner(err).Error(), "--set ", "--study ", 1))
		}
		if err := a.read(document{name: "--study " + setting}, text); err != nil {
			return a, err
		}
	}
	a.Set = slices.Concat(a.Set, o.Set)
	if err := a.expand(); err != nil {
		return a, milepost.E(op, milepost.KindInvalid, "%s: %w", file, inner(err))
	}
	if !slices.Contains(Names(), a.Base) && !filepath.IsAbs(a.Base) {
		a.Base = filepath.Join(filepath.Dir(name), a.Base)
	}
	if err := a.Validate(); err != nil {
		return a, milepost.E(op, milepost.KindInvalid, "%s: %w", file, inner(err))
	}
	for _, arm := range a.Arms {
		if _, err := a.Run(arm); err != nil {
			return a, milepost.E(op, milepost.KindInvalid, "%s: arm %s: %w", file, arm.Name, inner(err))
		}
	}
	return a, nil
}

// read decodes a document over a once it was checked strictly.
func (a *Ablation) read(d document, text []byte) error {
	d.of = reflect.TypeFor[Ablation]()
	if err := d.parse(text); err != nil {
		return err
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(a); err != nil {
		return milepost.E("configs: parse", milepost.KindInvalid, "%s: %s", d.name, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return nil
}

// expand turns the grid into arms.
func (a *Ablation) expand() error {
	if len(a.Grid) == 0 {
		return nil
	}
	made := []Arm{{}}
	for i, axis := range a.Grid {
		if axis.Name == "" || len(axis.Levels) == 0 {
			return wrongField(fmt.Sprintf("grid[%d]", i), fmt.Sprintf("%q with %d levels", axis.Name, len(axis.Levels)), "a name and one level or more")
		}
		var next []Arm
		for _, arm := range made {
			for _, l := range axis.Levels {
				if !armName.MatchString(l.Name) {
					return wrongField(fmt.Sprintf("grid[%d].levels.name", i), strconv.Quote(l.Name), "1 to 40 lower-case letters, digits and _")
				}
				next = append(next, Arm{
					Name: strings.TrimPrefix(arm.Name+"_"+l.Name, "_"), About: strings.TrimPrefix(arm.About+"; "+l.About, "; "),
					Set: slices.Concat(arm.Set, l.Set),
				})
			}
		}
		made = next
	}
	a.Arms, a.Grid = append(slices.Clone(a.Arms), made...), nil
	return nil
}

func ablationSource(name string) (file string, text []byte, err error) {
	const op = "configs: read"
	if b, err := shippedAblations.ReadFile("ablations/" + name + ".yaml"); err == nil {
		return name + ".yaml", b, nil
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return name, nil, milepost.E(op, milepost.KindNotFound, "%s is neither a file nor one of the shipped studies: %s", name, strings.Join(AblationNames(), ", "))
	}
	return name, b, milepost.Wrap(op, milepost.KindUnavailable, err)
}

// Run is the configuration of an arm's runs but for seed, folder and learning rate.
func (a Ablation) Run(arm Arm) (Run, error) {
	c, err := Load(a.Base, slices.Concat(a.Set, arm.Set))
	if err != nil {
		return c, err
	}
	s := &c.Schedule
	s.MaxUpdates, s.MaxTokens, s.MaxWall, s.Patience = a.Budget.Updates, a.Budget.Tokens, 0, 0
	s.EvalEvery, s.ValidationSamples, s.EvalSamples = a.Heldout.Every, a.Heldout.Samples, a.Heldout.Final
	s.EvalSeed, s.EvalBefore, s.Final = a.Heldout.Seed, false, "last"
	return c, c.Validate()
}

var (
	armName   = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)
	studyName = regexp.MustCompile(`^[\pL\pN][\pL\pN ._-]{0,79}$`)
)

// Validate names the first field that is wrong and what is allowed. It does not load the arms' configurations.
func (a Ablation) Validate() error {
	if err := a.validateArms(); err != nil {
		return err
	}
	for i, s := range a.Seeds {
		if slices.Contains(a.Seeds[:i], s) {
			return wrongField("seeds", s, "each seed once")
		}
		if slices.Contains(a.Search.Seeds, s) && len(a.Search.Rates) > 1 {
			return wrongField("search.seeds", s, "seeds that are not among seeds: a rate must not be chosen on the runs that it is judged by")
		}
	}
	if err := a.Search.validate(); err != nil {
		return err
	}
	searching := len(a.Search.Rates) > 1
	for _, f := range []struct {
		name    string
		wrong   bool
		got     any
		allowed string
	}{
		{"name", !studyName.MatchString(a.Name), strconv.Quote(a.Name), "1 to 80 letters, digits, blanks and . _ -, the first a letter or digit: it names the study's folder too"},
		{"seeds", len(a.Seeds) == 0, "empty", "one seed or more"},
		{"budget.updates", a.Budget.Updates < 1, a.Budget.Updates, "1 or more"},
		{"budget.tokens", a.Budget.Tokens < 0, a.Budget.Tokens, "0 (no bound) or more"},
		{"search.seeds", searching && len(a.Search.Seeds) == 0, "empty", "one seed or more where there are several rates"},
		{"search.updates", searching && a.Search.Updates < 1, a.Search.Updates, "1 or more"},
		{"heldout.every", a.Heldout.Every < 0, a.Heldout.Every, "0 (only at the end) or more"},
		{"heldout.samples", a.Heldout.Samples < 1, a.Heldout.Samples, "1 or more"},
		{"heldout.final", a.Heldout.Final < 1, a.Heldout.Final, "1 or more"},
		{"heldout.seed", a.Heldout.Seed == 0, 0, "any number but 0"},
		{"compare.resamples", a.Compare.Resamples < 100 || a.Compare.Resamples > 1e6, a.Compare.Resamples, "100 to 1000000"},
		{"compare.confidence", !(a.Compare.Confidence > .5 && a.Compare.Confidence < 1), a.Compare.Confidence, "above .5 and below 1"},
		{"compare.correction", !slices.Contains([]string{"holm", "bh", "none"}, a.Compare.Correction), a.Compare.Correction, "holm, bh, none"},
	} {
		if f.wrong {
			return wrongField(f.name, f.got, f.allowed)
		}
	}
	return nil
}

func (s Search) validate() error {
	for i, r := range s.Rates {
		if !(r > 0 && r <= math.MaxFloat64) || slices.Contains(s.Rates[:i], r) {
			return wrongField("search.rates", r, "numbers above 0, each once")
		}
	}
	for i, seed := range s.Seeds {
		if slices.Contains(s.Seeds[:i], seed) {
			return wrongField("search.seeds", seed, "each seed once")
		}
	}
	return nil
}

// governed are the fields of a configuration that the study sets in every run, with the field of the study that says how. A
// setting of one would have no effect. run.seed is not among them: tasks and cold start are made with it.
var governed = map[string]string{
	"schedule.max_updates": "budget.updates", "schedule.max_tokens": "budget.tokens", "schedule.max_wall": "budget", "schedule.patience": "budget",
	"schedule.eval_every": "heldout.every", "schedule.validation_samples": "heldout.samples", "schedule.eval_samples": "heldout.final",
	"schedule.eval_seed": "heldout.seed", "schedule.eval_before": "heldout", "schedule.final": "heldout",
	"run.name": "name", "run.dir": "--dir", "tasks.train": "micro.train", "tasks.heldout": "micro.heldout", "tasks.validation": "micro.heldout", "model": "rft",
}

// checkSet refuses settings without effect. place is "set" or the arm.
func (a Ablation) checkSet(place string, set []string) error {
	for _, s := range set {
		key, _, _ := strings.Cut(s, "=")
		by, ok := governed[key]
		if key == "update.optimizer.lr" && len(a.Search.Rates) > 0 {
			by, ok = "search.rates", true
		}
		if ok {
			return wrongField(place+": "+key, "set", "settings that the study does not make itself; here "+by+" says what it is")
		}
	}
	return nil
}

func (a Ablation) validateArms() error {
	if len(a.Arms) < 2 {
		return wrongField("arms", len(a.Arms), "two arms or more")
	}
	if err := a.checkSet("set", a.Set); err != nil {
		return err
	}
	var names []string
	for _, arm := range a.Arms {
		if err := a.checkSet("arm "+arm.Name, arm.Set); err != nil {
			return err
		}
		switch {
		case !armName.MatchString(arm.Name):
			return wrongField("arms.name", arm.Name, "1 to 40 lower-case letters, digits and _")
		case slices.Contains(names, arm.Name):
			return wrongField("arms.name", arm.Name, "each name once")
		}
		names = append(names, arm.Name)
	}
	if !slices.Contains(names, a.Reference) {
		return wrongField("reference", a.Reference, "the name of an arm: "+strings.Join(names, ", "))
	}
	return nil
}

func wrongField(name string, got any, allowed string) error {
	return milepost.E("configs: ablation", milepost.KindInvalid, "%s is %v; allowed: %s", name, got, allowed)
}
