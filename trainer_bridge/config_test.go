package trainerbridge

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	milepost "github.com/milepost-rl/milepost"
)

func TestDefaultsAreValid(t *testing.T) {
	for _, c := range []interface{ Validate() error }{DefaultLossConfig(), DefaultUpdateConfig(), DefaultSFTConfig(), DefaultModelConfig()} {
		if err := c.Validate(); err != nil {
			t.Errorf("%T: %v", c, err)
		}
	}
}

func TestBadConfigurationNamesFieldAndAllowed(t *testing.T) {
	update := func(f func(*UpdateConfig)) interface{ Validate() error } {
		c := DefaultUpdateConfig()
		f(&c)
		return c
	}
	sft := func(f func(*SFTConfig)) interface{ Validate() error } {
		c := DefaultSFTConfig()
		f(&c)
		return c
	}
	model := func(f func(*ModelConfig)) interface{ Validate() error } {
		c := DefaultModelConfig()
		f(&c)
		return c
	}
	one := 1.0
	for want, c := range map[string]interface{ Validate() error }{
		`loss.loss is "pg"; allowed: ppo, gspo, cispo`:    update(func(c *UpdateConfig) { c.Loss.Loss = "pg" }),
		`loss.clip_low is 2; allowed: 0 to 1`:             update(func(c *UpdateConfig) { c.Loss.ClipLow = 2 }),
		`loss.dual_clip is 1; allowed: above 1`:           update(func(c *UpdateConfig) { c.Loss.DualClip = &one }),
		`loss.norm_length is required`:                    update(func(c *UpdateConfig) { c.Loss.Aggregate = "seq-mean-token-sum-norm" }),
		`loss.correction is "tis"; allowed: none, token_`: update(func(c *UpdateConfig) { c.Loss.Correction = "tis" }),
		`loss.kl is "k4"; allowed: none, k1, k2, k3`:      update(func(c *UpdateConfig) { c.Loss.KL = "k4" }),
		`loss.icepop_low is 9; allowed: 0 to 5`:           update(func(c *UpdateConfig) { c.Loss.IcepopLow = 9 }),
		`optimizer.lr is NaN; allowed: above 0`:           update(func(c *UpdateConfig) { c.Optimizer.LR = math.NaN() }),
		`minibatches is 0; allowed: 1 or more`:            update(func(c *UpdateConfig) { c.Minibatches = 0 }),
		`temperature is 0; allowed: above 0`:              update(func(c *UpdateConfig) { c.Temperature = 0 }),
		`schedule is "step"; allowed: cosine, linear, c`:  sft(func(c *SFTConfig) { c.Schedule = "step" }),
		`epochs is 0; allowed: 1 or more`:                 sft(func(c *SFTConfig) { c.Steps, c.Epochs = 0, 0 }),
		`vocab_size is 100; allowed: 261 or more`:         model(func(c *ModelConfig) { c.VocabSize = 100 }),
		`width 100 must be a multiple of twice heads 4`:   model(func(c *ModelConfig) { c.Width = 100 }),
		`added_tokens[1] is "a"; allowed`:                 model(func(c *ModelConfig) { c.AddedTokens = []string{"a", "a"} }),
	} {
		err := c.Validate()
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestConfigurationDecodesOverTheDefaults(t *testing.T) {
	c := DefaultUpdateConfig()
	text := "loss: {loss: gspo, dual_clip: 3, kl: k3, kl_coef: 0.01}\noptimizer: {lr: 1e-4}\nminibatches: 2\n"
	if err := yaml.UnmarshalWithOptions([]byte(text), &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if c.Loss.Loss != "gspo" || *c.Loss.DualClip != 3 || c.Loss.ClipHigh != 0.28 || c.Optimizer.LR != 1e-4 || c.Optimizer.ClipNorm != 1 || c.Minibatches != 2 {
		t.Errorf("decoded %+v", c)
	}
	p := c.proto()
	if p.Loss.GetDualClip() != 3 || p.Loss.NormLength != nil || p.Loss.Kl != "k3" || p.Optimizer.Lr != 1e-4 {
		t.Errorf("proto %v", p)
	}
}

// TestLossDefaultsAreThoseOfPython compares the two places that state the defaults of the loss contract.
func TestLossDefaultsAreThoseOfPython(t *testing.T) {
	source, err := os.ReadFile("python/milepost_trainer/loss.py")
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultLossConfig()
	encoded, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(encoded, &fields); err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^    (\w+): (?:str|float|float \| None) = (.+)$`).FindAllSubmatch(source, -1)
	if len(found) != len(fields) {
		t.Fatalf("loss.py states %d fields, Go %d", len(found), len(fields))
	}
	for _, m := range found {
		var value any
		if err := yaml.Unmarshal([]byte(strings.Replace(string(m[2]), "None", "null", 1)), &value); err != nil {
			t.Fatal(err)
		}
		if f, ok := fields[string(m[1])]; !ok || !same(f, value) {
			t.Errorf("%s is %v in Go and %v in loss.py", m[1], f, value)
		}
	}
}

func same(a, b any) bool {
	number := func(x any) (float64, bool) {
		switch x := x.(type) {
		case float64:
			return x, true
		case uint64:
			return float64(x), true
		}
		return 0, false
	}
	x, okX := number(a)
	y, okY := number(b)
	return okX && okY && x == y || !okX && !okY && a == b
}
