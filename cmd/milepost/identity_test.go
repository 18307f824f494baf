package main

import (
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost/configs"
)

// TestServesWhat: a server may be adopted by a run with the same settings, read back from the run folder, and a model of
// the same shape and tokenizer, wherever that lies and at whatever port; by no other.
func TestServesWhat(t *testing.T) {
	c := newTrainable(t)
	cfg := configs.Default()
	cfg.Server.Model = c.model
	serves := func(cfg configs.Run) string {
		t.Helper()
		out, err := servesWhat(cfg.Server, "env")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := serves(cfg)
	text, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, string(text))
	same, err := configs.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := serves(same); got != want {
		t.Error("the configuration of the run folder stands for another server")
	}
	moved := newTrainable(t)
	same.Server.Model, same.Server.Port = moved.model, 4321
	if got := serves(same); got != want {
		t.Error("model directory and port tell servers apart")
	}
	for name, change := range map[string]func(*configs.Run){
		"max_model_len": func(c *configs.Run) { c.Server.MaxModelLen++ },
		"args":          func(c *configs.Run) { c.Server.Args = []string{"--seed=3"} },
		"env":           func(c *configs.Run) { c.Server.Env = map[string]string{"A": "b"} },
		"shape":         func(*configs.Run) { write(t, filepath.Join(moved.model, "config.json"), `{"hidden_size": 7}`) },
		"no tokenizer":  func(*configs.Run) { remove(t, filepath.Join(moved.model, "tokenizer.json")) },
	} {
		other := same
		change(&other)
		if serves(other) == want {
			t.Errorf("another %s does not tell servers apart", name)
		}
		for _, f := range []string{"config.json", "tokenizer.json"} {
			write(t, filepath.Join(moved.model, f), "{}")
		}
	}
}
