package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
)

// serverIdentity is what a resumed run needs to adopt the server.
type serverIdentity struct {
	Identity supervise.Identity `json:"identity"`
	Port     int                `json:"port"`
	Serves   string             `json:"serves"` // servesWhat of it
}

// servesWhat stands for everything that decides what a server can be used for: its settings, and of its model the
// shape and the tokenizer, not the weights, which are pushed.
func servesWhat(server vllm.ServerConfig, environment string) (string, error) {
	const op = "identify server"
	h, err := hashOf(server.Model, "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	server.Model, server.Port = "", 0
	b, err := json.Marshal([]any{server.Host, server.Argv(environment), server.Environ()})
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInternal, err)
	}
	_, _ = h.Write(b)
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// hashOf begins a hash with files of a directory; one that is missing counts as empty.
func hashOf(dir string, names ...string) (hash.Hash, error) {
	h := sha256.New()
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		_, _ = h.Write(append(b, 0)) // a hash takes everything
	}
	return h, nil
}

// modelShape stands for what models have in common whose weights can take each other's place, tokenizer and chat template
// included, and returns the size of the vocabulary. Unlike servesWhat it does not mind how the files were written.
func modelShape(dir string) (shape string, vocab int, err error) {
	const op = "identify model"
	h, err := hashOf(dir, "tokenizer.json", "chat_template.jinja")
	if err != nil {
		return "", 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	var config map[string]any
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(b, &config)
	}
	if err != nil {
		return "", 0, milepost.E(op, milepost.KindInvalid, "%s/config.json: %w", dir, err)
	}
	for _, field := range []string{"architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_experts"} {
		_, _ = fmt.Fprintln(h, config[field])
	}
	size, _ := config["vocab_size"].(float64)
	return hex.EncodeToString(h.Sum(nil)), int(size), nil
}

// readIdentity returns nil where no server was left behind.
func readIdentity(path string) *serverIdentity {
	var id serverIdentity
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &id) != nil {
		return nil
	}
	return &id
}

func writeIdentity(path string, id serverIdentity) error {
	b, err := json.Marshal(id)
	if err == nil {
		err = os.WriteFile(path, b, 0o644)
	}
	return milepost.Wrap("store the server's identity", milepost.KindUnavailable, err)
}
