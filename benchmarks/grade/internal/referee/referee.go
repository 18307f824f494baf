// Package referee lets tests ask the Python package swebench what it makes of a log, and keeps its recorded answers.
//
// A corpus is a zstd JSONL file of [Row], each with the referee's answer. Tests hold our answers against the recorded
// ones everywhere, and ask the referee itself again where its environment is installed
// (trainer_bridge/python/envs/install referee). The script that asks is benchmarks/grade/logs/testdata/referee.py.
package referee

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Row is one log, what reads it, and what the referee made of it.
type Row struct {
	ID         string `json:"id"`
	Parser     string `json:"parser"`
	InstanceID string `json:"instance_id"`
	Version    string `json:"version"`
	Origin     string `json:"origin"` // real, generated or mutated
	Tool       string `json:"tool,omitempty"`
	Text       string `json:"text,omitempty"`
	Bytes      []byte `json:"base64,omitempty"` // in place of Text where the log is not UTF-8
	Tests      *Tests `json:"tests,omitempty"`  // a row to be judged, not only parsed

	Answer *Answer `json:"answer,omitempty"`
}

// Tests are what a judged row is held against.
type Tests struct {
	F2P      []string `json:"f2p"`
	P2P      []string `json:"p2p"`
	EvalType string   `json:"eval_type"`
	Patch    *string  `json:"patch"`
}

// Answer is what the referee said: an error, or the states of tests in its order, or a report.
type Answer struct {
	ID      string          `json:"id"`
	Error   string          `json:"error,omitempty"`
	Results [][2]string     `json:"results,omitempty"`
	Report  json.RawMessage `json:"report,omitempty"`
}

// Log returns the bytes of the log.
func (r *Row) Log() []byte {
	if r.Bytes != nil {
		return r.Bytes
	}
	return []byte(r.Text)
}

// Read reads a corpus; a file that ends in .zst is decompressed.
func Read(t testing.TB, path string) []*Row {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) == ".zst" {
		d, err := zstd.NewReader(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if data, err = d.DecodeAll(data, nil); err != nil {
			t.Fatal(err)
		}
	}
	return decode[Row](t, data)
}

// Write writes a corpus.
func Write(t testing.TB, path string, rows []*Row) {
	t.Helper()
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		t.Fatal(err)
	}
	data := e.EncodeAll(encode(t, rows), nil)
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

// Root is the top of the source tree.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../../..")
}

// Python returns the referee's interpreter, and skips the test where its environment is not installed.
func Python(t testing.TB) string {
	t.Helper()
	lock, err := os.ReadFile(filepath.Join(Root(), "trainer_bridge/python/envs/referee.txt"))
	if err != nil {
		t.Fatal(err)
	}
	home := os.Getenv("MILEPOST_HOME")
	if home == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip(err)
		}
		home = filepath.Join(cache, "milepost")
	}
	dir := filepath.Join(home, "envs", fmt.Sprintf("referee-%x", sha256.Sum256(lock))[:len("referee-")+12])
	if _, err := os.Stat(filepath.Join(dir, ".complete")); err != nil {
		t.Skip("the referee environment is not installed; run: trainer_bridge/python/envs/install referee")
	}
	return filepath.Join(dir, "bin/python")
}

// Ask gives rows to the referee and returns its answers, in their order.
func Ask(t testing.TB, rows []*Row) []*Answer {
	t.Helper()
	bare := make([]*Row, len(rows))
	for i, r := range rows {
		c := *r
		c.Answer = nil
		bare[i] = &c
	}
	out := Script(t, encode(t, bare), "referee.py")
	answers := decode[Answer](t, out)
	if len(answers) != len(rows) {
		t.Fatalf("the referee gave %d answers to %d logs", len(answers), len(rows))
	}
	for i, a := range answers {
		if a.ID != rows[i].ID {
			t.Fatalf("answer %d is of %s, not of %s", i, a.ID, rows[i].ID)
		}
	}
	return answers
}

// Script runs a program, of testdata where its path is relative, in the referee's environment and returns its output.
func Script(t testing.TB, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(Root(), "benchmarks/grade/logs/testdata", name)
	}
	cmd := exec.Command(Python(t), append([]string{name}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, stderr.Bytes())
	}
	return out
}

// Decode reads JSONL rows.
func Decode(t testing.TB, data []byte) []*Row { return decode[Row](t, data) }

func decode[T any](t testing.TB, data []byte) []*T {
	t.Helper()
	var out []*T
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		v := new(T)
		if err := json.Unmarshal(lines.Bytes(), v); err != nil {
			t.Fatalf("line %d: %v", len(out)+1, err)
		}
		out = append(out, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func encode(t testing.TB, rows []*Row) []byte {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}
