package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

// runCredit runs `credit recompute ARGS` in process.
func runCredit(stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := newCreditCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append([]string{"recompute"}, args...))
	cmd.SetIn(stdin)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.Execute()
	return out.String(), errs.String(), err
}

func TestCreditRecomputeGolden(t *testing.T) {
	files, err := filepath.Glob("../../credit/testdata/golden/*.json")
	if err != nil || len(files) != 35 {
		t.Fatalf("%d golden files (error %v), want 35", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			stdout, _, err := runCredit(strings.NewReader(""), file)
			if err != nil {
				t.Fatal(err)
			}
			fromStdin, _, err := runCredit(bytes.NewReader(data), "-")
			if err != nil || fromStdin != stdout {
				t.Fatalf("standard input gives another result (error %v)", err)
			}
			var want struct {
				Expected any `json:"expected"`
			}
			var got any
			if err := json.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatal(err)
			}
			sameJSON(t, "expected", got, want.Expected)
		})
	}
}

// sameJSON compares decoded JSON: same shape and fields, numbers to 1e-9.
func sameJSON(t *testing.T, at string, got, want any) {
	t.Helper()
	switch w := want.(type) {
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			t.Fatalf("%s: got %v, want a list of %d", at, got, len(w))
		}
		for i := range w {
			sameJSON(t, at+"[]", g[i], w[i])
		}
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			t.Fatalf("%s: got %v, want the fields of %v", at, got, w)
		}
		for k := range w {
			sameJSON(t, at+"."+k, g[k], w[k])
		}
	case float64:
		if g, ok := got.(float64); !ok || !(math.Abs(g-w) <= 1e-9) {
			t.Fatalf("%s: got %v, want %v", at, got, w)
		}
	default:
		if got != want {
			t.Fatalf("%s: got %v, want %v", at, got, want)
		}
	}
}

func TestCreditRecomputeRefuses(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("run:"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		stdin string
		args  []string
		kind  milepost.Kind
		words string
	}{
		"no file":   {args: []string{filepath.Join(t.TempDir(), "none.json")}, kind: milepost.KindNotFound, words: "none.json"},
		"no args":   {kind: milepost.KindInvalid, words: "one case file"},
		"in a file": {args: []string{broken}, kind: milepost.KindInvalid, words: "broken.json: casefile: decode: invalid character"},
		"not JSON":  {stdin: "{", args: []string{"-"}, kind: milepost.KindInvalid, words: "unexpected EOF"},
		"estimator": {stdin: `{"config":{"estimator":"vibes"},"episodes":[]}`, args: []string{"-"}, kind: milepost.KindInvalid, words: `field estimator is "vibes"; allowed: one of dapo, `},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, err := runCredit(strings.NewReader(c.stdin), c.args...)
			if milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.words) {
				t.Fatalf("error %v of kind %q, want %q of kind %q", err, milepost.KindOf(err), c.words, c.kind)
			}
			if stdout != "" {
				t.Fatalf("printed %q", stdout)
			}
		})
	}
}

func TestCreditRecomputeWarns(t *testing.T) {
	stdout, stderr, err := runCredit(nil, "../../credit/testdata/golden/probe_trust_checked.json")
	if err != nil || !strings.Contains(stderr, "warning: episode a-1 step 0: probe is not trusted") {
		t.Fatalf("error %v, warnings %q", err, stderr)
	}
	if strings.Contains(stdout, "warning") {
		t.Fatal("a warning is on standard output")
	}
}

func TestCreditRecomputeOfARunRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		kind milepost.Kind
		want string
	}{
		{[]string{"--run", dir, "case.json"}, milepost.KindInvalid, "exclude each other"},
		{[]string{"--run", filepath.Join(dir, "none")}, milepost.KindNotFound, "config.yaml"},
		{nil, milepost.KindInvalid, "--run RUN_DIR"},
	} {
		out, _, err := runCredit(strings.NewReader(""), c.args...)
		if milepost.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("recompute %v: output %q, error %v; want kind %s and %q", c.args, out, err, c.kind, c.want)
		}
	}
}
