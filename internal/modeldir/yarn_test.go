package modeldir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

func modelWith(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": config, "model.safetensors": "weights"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestStretch: both spellings of old files, a nested text model; weights are linked, and a second time changes nothing.
func TestStretch(t *testing.T) {
	y := Yarn{Factor: 4, Original: 32768}
	for name, c := range map[string]struct{ config, want string }{
		"theta beside":    {`{"rope_theta": 1000000, "max_position_embeddings": 32768}`, `"rope_theta": 1000000`},
		"rope_parameters": {`{"rope_parameters": {"rope_type": "default", "rope_theta": 5}, "max_position_embeddings": 9}`, `"rope_theta": 5`},
		"null scaling":    {`{"rope_scaling": null, "rope_theta": 7}`, `"rope_theta": 7`},
		"nested":          {`{"text_config": {"rope_theta": 8}}`, `"text_config"`},
	} {
		model, out := modelWith(t, c.config), filepath.Join(t.TempDir(), "a", "out")
		got, err := y.Stretch(model, out)
		if err != nil || got != out {
			t.Fatalf("%s: %s, %v", name, got, err)
		}
		b, err := os.ReadFile(filepath.Join(out, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.want, `"rope_type": "yarn"`, `"factor": 4`, `"original_max_position_embeddings": 32768`, `"max_position_embeddings": 131072`} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s: config.json lacks %s:\n%s", name, want, b)
			}
		}
		if strings.Contains(string(b), "rope_scaling") {
			t.Errorf("%s: the old section is still there:\n%s", name, b)
		}
		if w, err := os.ReadFile(filepath.Join(out, "model.safetensors")); err != nil || string(w) != "weights" {
			t.Errorf("%s: weights %q, %v", name, w, err)
		}
		if again, err := y.Stretch(out, filepath.Join(t.TempDir(), "again")); err != nil || again != out {
			t.Errorf("%s: a stretched model became %s, %v", name, again, err)
		}
		if again, err := y.Stretch(model, out); err != nil || again != out {
			t.Errorf("%s: made anew: %s, %v", name, again, err)
		}
	}
}

func TestStretchRefuses(t *testing.T) {
	for config, want := range map[string]string{
		`{"rope_parameters": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 32768}}`: "stretched already, by 2",
		`{"rope_scaling": {"type": "linear", "factor": 2}}`:                                                  `scales its positions by "linear"`,
		`{"hidden_size": 8}`: "has no rope_theta",
	} {
		_, err := Yarn{Factor: 4, Original: 32768}.Stretch(modelWith(t, config), filepath.Join(t.TempDir(), "out"))
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	if same, err := (Yarn{Factor: 1}).Stretch("no/such/folder", "x"); err != nil || same != "no/such/folder" {
		t.Errorf("off: %s, %v", same, err)
	}
	for _, bad := range []Yarn{{Factor: .5}, {Factor: 2}, {Factor: 1, Original: -1}} {
		if err := bad.Validate(); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
