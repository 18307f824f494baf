package confdoc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// The types below are read by the tests from this package's own source and from a made-up one.

func source(t *testing.T, text string) *Source {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "internal/confdoc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "internal/confdoc/made.go"), []byte("package confdoc\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	return NewSource("github.com/milepost-rl/milepost", dir)
}

type outer struct {
	Wait   time.Duration `yaml:"wait"`
	Name   string        `yaml:"name"`
	Inner  inner         `yaml:"inner"`
	Hidden chan int      `yaml:"-"`
}

type inner struct {
	Weight *float64       `yaml:"weight"`
	List   []string       `yaml:"list"`
	Empty  map[string]any `yaml:"empty"`
	Long   int64          `yaml:"long,omitempty"`
}

const made = `
type outer struct {
	Wait time.Duration // how long
	// Name is what it is
	// called.
	Name string
	Inner inner // a section
}
type inner struct {
	Weight *float64 // null: none
	List []string // in [0, 1]
	Empty map[string]any // [vllm] is no link
	Long int64 // word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word
}
`

func TestWrite(t *testing.T) {
	b, err := source(t, made).Write(outer{Wait: 90 * time.Minute, Name: "a: b", Inner: inner{List: []string{"x", "y\n"}, Long: 3}})
	if err != nil {
		t.Fatal(err)
	}
	want := `wait: 1h30m # how long

name: "a: b" # name is what it is called

inner: # a section
  weight: null # null: none
  list: ["x", "y\n"] # in [0, 1]
  empty: {} # [vllm] is no link
  # word word word word word word word word word word word word word word word word word word word word word word word
  # word word word word word word word
  long: 3
`
	if string(b) != want {
		t.Errorf("wrote\n%s\nwant\n%s", b, want)
	}
}

func TestWriteFails(t *testing.T) {
	for name, c := range map[string]struct {
		from, to, want string
		value          any
	}{
		"no comment": {"// null: none", "", "field inner.weight (confdoc.inner.Weight) has no comment", outer{}},
		"Go link":    {"// null: none", "// see [Default.X].", "the comment of field inner.weight (confdoc.inner.Weight) holds the Go link [Default.X]", outer{}},
		"no form":    {"", "\ntype odd struct { C complex128 // c\n}", "field c (confdoc.odd.C): confdoc: value: a complex128 has no YAML form", odd{}},
		"broken":     {"type outer", "typ outer", "expected declaration", outer{}},
		"foreign":    {"", "", "package time is not part of module", struct{ T time.Time }{}},
	} {
		value := c.value
		if name == "foreign" {
			value = time.Time{}
		}
		text := strings.Replace(made, c.from, c.to, 1)
		if _, err := source(t, text).Write(value); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := NewSource("github.com/milepost-rl/milepost", t.TempDir()).Write(outer{}); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("without source: %v", err)
	}
}

type odd struct {
	C complex128 `yaml:"c"`
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 2 * time.Minute: "2m", 24 * time.Hour: "24h", 90 * time.Minute: "1h30m",
		500 * time.Millisecond: "500ms", time.Hour + time.Second: "1h0m1s", 10 * time.Minute: "10m",
	} {
		if got := duration(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
		if back, err := time.ParseDuration(duration(d)); err != nil || back != d {
			t.Errorf("%s reads as %v (%v)", want, back, err)
		}
	}
}
