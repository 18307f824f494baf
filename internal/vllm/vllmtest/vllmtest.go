// Package vllmtest gives tests of several packages what stands opposite a real vLLM server: tiny random models, and a
// transformers forward pass that judges what the server samples. What a further end-to-end test needs of both goes here.
package vllmtest

import (
	"bufio"
	"context"
	"embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

//go:embed *.py chatml.jinja
var files embed.FS

// script is where python can run a script, with the files that it reads beside it.
func script(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// TinyModel writes a tiny model with random weights to a directory that does not exist yet; args are tiny_model.py's, after
// the directory. python is that of the trainer environment.
func TinyModel(t testing.TB, python, dir string, args ...string) {
	t.Helper()
	argv := append([]string{script(t, "tiny_model.py"), dir}, args...)
	if out, err := exec.Command(python, argv...).CombinedOutput(); err != nil {
		t.Fatalf("make a model: %v\n%s", err, out)
	}
}

// Scorer is the trainer's side of a canary, in a process of its own that ends with the test. Its methods may be called at
// the same time.
type Scorer struct {
	mu  sync.Mutex
	in  *json.Encoder
	out *bufio.Reader
	dir string
}

// StartScorer starts it; python is that of the trainer environment.
func StartScorer(t testing.TB, python string) *Scorer {
	t.Helper()
	cmd := exec.Command(python, script(t, "score.py"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return &Scorer{in: json.NewEncoder(in), out: bufio.NewReaderSize(out, 1<<20)}
}

// Hold says by which model Score answers from here on.
func (s *Scorer) Hold(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir = dir
}

// Score implements weights.Scorer with the model that it holds.
func (s *Scorer) Score(_ context.Context, sequences [][]int32) ([][]float32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(s.dir, sequences, 1)
}

// At returns, for every sequence, the logprob of each token given the ones before it by the model in dir, at a temperature;
// element 0 is 0.
func (s *Scorer) At(dir string, sequences [][]int32, temperature float64) ([][]float32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(dir, sequences, temperature)
}

// at is At; mu is held.
func (s *Scorer) at(dir string, sequences [][]int32, temperature float64) ([][]float32, error) {
	if err := s.in.Encode(map[string]any{"dir": dir, "sequences": sequences, "temperature": temperature}); err != nil {
		return nil, err
	}
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var out struct {
		Logprobs [][]float32 `json:"logprobs"`
	}
	return out.Logprobs, json.Unmarshal(line, &out)
}
