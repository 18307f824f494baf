package evaluate

import (
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// Config is what `milepost eval` reads of a configuration besides the parts it shares with training.
type Config struct {
	// Prices of the model. Without them no cost is stated.
	Prices Prices `yaml:"prices"`
	// GiveUp ends an evaluation after so many attempts in a row that infrastructure lost; 0 = never. What was finished is
	// kept.
	GiveUp int `yaml:"give_up"`
	// Timeout bounds the grading of an attempt where its task states no time.
	Timeout time.Duration `yaml:"timeout"`
}

// Prices are what a million tokens cost, in whatever currency.
type Prices struct {
	Input  float64 `yaml:"input" json:"input"`   // per million prompt tokens; 0 = no prices
	Output float64 `yaml:"output" json:"output"` // per million completion tokens
	Cached float64 `yaml:"cached" json:"cached"` // per million prompt tokens read from the endpoint's cache; 0 = as input
}

// DefaultConfig has no prices.
func DefaultConfig() Config { return Config{GiveUp: 32, Timeout: 30 * time.Minute} }

// Validate reports the first field that is out of range, by its YAML name.
func (c Config) Validate() error {
	const op = "evaluate: config"
	p := c.Prices
	switch {
	case !(p.Input >= 0 && p.Output >= 0 && p.Cached >= 0):
		return milepost.E(op, milepost.KindInvalid, "prices: input is %g, output %g, cached %g; none may be negative", p.Input, p.Output, p.Cached)
	case p.Input > 0 && p.Output == 0:
		return milepost.E(op, milepost.KindInvalid, "prices.output: missing, though prices.input is given; allowed: both, or neither")
	case p.Input == 0 && (p.Output > 0 || p.Cached > 0):
		return milepost.E(op, milepost.KindInvalid, "prices.input: missing, though another price is given; allowed: input and output, or neither")
	case c.GiveUp < 0:
		return milepost.E(op, milepost.KindInvalid, "give_up: %d is negative; 0 means never", c.GiveUp)
	case c.Timeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "timeout: %v is not positive", c.Timeout)
	}
	return nil
}

// given reports whether there are prices.
func (p Prices) given() bool { return p.Input > 0 }

// of is what the tokens cost.
func (p Prices) of(u rollout.Usage) float64 {
	cached := p.Cached
	if cached == 0 {
		cached = p.Input
	}
	return (float64(u.Prompt-u.Cached)*p.Input + float64(u.Cached)*cached + float64(u.Completion)*p.Output) / 1e6
}

// Cost is what an evaluation cost, attempts that infrastructure lost left out.
type Cost struct {
	Prices   Prices  `json:"prices_per_million"`
	Total    float64 `json:"total"`
	Attempts int     `json:"attempts"`     // of which tokens are known
	Each     float64 `json:"per_attempt"`  // mean over these
	Resolved float64 `json:"per_resolved"` // total over resolved attempts; 0 where none is
}

// Spent are tokens, turns and time of the graded attempts.
type Spent struct {
	Attempts   int     `json:"attempts"`      // graded
	Told       int     `json:"attempts_told"` // of these, whose tokens are known
	Prompt     int64   `json:"prompt_tokens"` // of Told; each turn's prompt counts anew
	Completion int64   `json:"completion_tokens"`
	Cached     int64   `json:"cached_tokens"` // of Prompt, where the endpoint says so
	Turns      int     `json:"turns"`
	Wall       float64 `json:"wall_s"`    // sum over attempts, gradings not counted
	Grading    float64 `json:"grading_s"` // sum over attempts, waiting for a slot included
}

func (s *Spent) add(r Record) {
	s.Attempts++
	s.Turns += r.Turns
	s.Wall += r.Wall.Seconds()
	s.Grading += r.Grading.Seconds()
	if u := r.Usage; u != nil {
		s.Told++
		s.Prompt, s.Completion, s.Cached = s.Prompt+u.Prompt, s.Completion+u.Completion, s.Cached+u.Cached
	}
}

// cost is nil without prices, and where no tokens are known: a cost is never made up.
func (s *Spent) cost(p Prices, resolved int) *Cost {
	if !p.given() || s.Told == 0 {
		return nil
	}
	c := &Cost{Prices: p, Total: p.of(rollout.Usage{Prompt: s.Prompt, Completion: s.Completion, Cached: s.Cached}), Attempts: s.Told}
	c.Each = c.Total / float64(s.Told)
	if resolved > 0 {
		c.Resolved = c.Total / float64(resolved)
	}
	return c
}

// join adds what others spent.
func (s *Spent) join(o Spent) {
	s.Attempts, s.Told, s.Turns = s.Attempts+o.Attempts, s.Told+o.Told, s.Turns+o.Turns
	s.Prompt, s.Completion, s.Cached = s.Prompt+o.Prompt, s.Completion+o.Completion, s.Cached+o.Cached
	s.Wall, s.Grading = s.Wall+o.Wall, s.Grading+o.Grading
}
