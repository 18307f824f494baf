package modeldir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

// Yarn stretches a model's context by YaRN (arXiv 2309.00071), as Qwen's model cards describe it.
//
// It is written into config.json of a model directory, which transformers and vLLM both read, and which the trainer copies
// into everything it exports: so both sides compute with the same frequencies and the same attention factor.
type Yarn struct {
	Factor   float64 `yaml:"factor"`   // how many times as long; 1 = off
	Original int     `yaml:"original"` // tokens of the context that the model was trained with; needed where factor is above 1
}

// On says whether there is anything to stretch.
func (y Yarn) On() bool { return y.Factor > 1 }

// Context is the stretched length in tokens.
func (y Yarn) Context() int { return int(y.Factor * float64(y.Original)) }

// Validate checks the fields; Original must be named where Factor is above 1, so that what is allowed is known without
// the model.
func (y Yarn) Validate() error {
	const op = "modeldir: yarn"
	switch {
	case math.IsNaN(y.Factor) || math.IsInf(y.Factor, 0) || y.Factor < 1:
		return milepost.E(op, milepost.KindInvalid, "factor is %g; allowed: 1 (off) or more", y.Factor)
	case y.Original < 0 || y.On() && y.Original == 0:
		return milepost.E(op, milepost.KindInvalid, "original is %d; allowed: the tokens of the model's own context, above 0 where factor is above 1", y.Original)
	}
	return nil
}

// Stretch makes out a model directory like model but with the longer context: config.json anew, everything else linked.
// A model whose config.json says the same already is returned as it is, as is every model where y is off; an out that was
// made before is made anew.
func (y Yarn) Stretch(model, out string) (string, error) {
	const op = "modeldir: stretch"
	if !y.On() {
		return model, nil
	}
	config, err := readConfig(model)
	if err != nil {
		return "", err
	}
	if done, err := y.apply(config, model); err != nil || done {
		return model, err
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInternal, err)
	}
	model, err = filepath.Abs(model)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInvalid, err)
	}
	files, err := os.ReadDir(model)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindNotFound, err)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".stretch-*")
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	err = errors.Join(os.Chmod(tmp, 0o755), os.WriteFile(filepath.Join(tmp, configName), append(text, '\n'), 0o644))
	for _, f := range files {
		if f.Name() != configName {
			err = errors.Join(err, os.Symlink(filepath.Join(model, f.Name()), filepath.Join(tmp, f.Name())))
		}
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(out), os.Rename(tmp, out))
	}
	return out, milepost.Wrap(op, milepost.KindUnavailable, err)
}

// apply writes the longer context into a configuration; done where it holds already. transformers' name for the section
// is rope_parameters, older files say rope_scaling and keep rope_theta beside it.
func (y Yarn) apply(config map[string]any, model string) (done bool, err error) {
	const op = "modeldir: stretch"
	text, nested := config["text_config"].(map[string]any)
	if !nested {
		text = config
	}
	rope := map[string]any{}
	for _, name := range []string{"rope_parameters", "rope_scaling"} {
		if old, ok := text[name].(map[string]any); ok {
			rope = old
			break
		}
	}
	kind, _ := rope["rope_type"].(string)
	if kind == "" {
		kind, _ = rope["type"].(string)
	}
	if kind == "yarn" {
		if rope["factor"] != y.Factor || rope["original_max_position_embeddings"] != float64(y.Original) {
			return false, milepost.E(op, milepost.KindInvalid, "%s is stretched already, by %v from %v tokens; yarn has %g and %d; make them equal, or set yarn.factor to 1",
				filepath.Join(model, configName), rope["factor"], rope["original_max_position_embeddings"], y.Factor, y.Original)
		}
		return true, nil
	}
	if kind != "" && kind != "default" {
		return false, milepost.E(op, milepost.KindInvalid, "%s scales its positions by %q; yarn can stretch models with plain rotary positions only", filepath.Join(model, configName), kind)
	}
	if _, ok := rope["rope_theta"]; !ok {
		if rope["rope_theta"] = text["rope_theta"]; rope["rope_theta"] == nil {
			return false, milepost.E(op, milepost.KindInvalid, "%s has no rope_theta: it has no rotary positions to stretch", filepath.Join(model, configName))
		}
	}
	delete(rope, "type")
	rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"] = "yarn", y.Factor, y.Original
	delete(text, "rope_scaling")
	text["rope_parameters"] = rope
	text["max_position_embeddings"] = y.Context()
	return false, nil
}

const configName = "config.json"

// readConfig reads config.json of a model directory.
func readConfig(model string) (map[string]any, error) {
	const op = "modeldir: read"
	name := filepath.Join(model, configName)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.E(op, milepost.KindNotFound, "%s does not exist", name)
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	var config map[string]any
	if err := json.Unmarshal(b, &config); err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s is no JSON object: %w", name, err)
	}
	return config, nil
}
