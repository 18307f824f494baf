package configs

import (
	"bytes"
	"embed"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
)

//go:embed *.yaml
var shipped embed.FS

// Names lists the shipped configurations, without ".yaml".
func Names() []string {
	names, _ := fs.Glob(shipped, "*.yaml") // the pattern is constant and well formed
	for i, n := range names {
		names[i] = strings.TrimSuffix(n, ".yaml")
	}
	slices.Sort(names)
	return names
}

// Source returns the text of a configuration: a file's, or that of a shipped one by its name.
func Source(name string) ([]byte, error) {
	const op = "configs: read"
	if b, err := shipped.ReadFile(name + ".yaml"); err == nil {
		return b, nil
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.E(op, milepost.KindNotFound, "%s is neither a file nor one of the shipped configurations: %s", name, strings.Join(Names(), ", "))
	}
	return b, milepost.Wrap(op, milepost.KindUnavailable, err)
}

// Load reads a configuration by file or shipped name, puts the key=value overrides on top and validates the whole. An
// unknown field, a value of the wrong type or out of range is an error of kind invalid that names the place.
func Load(name string, overrides []string) (Run, error) {
	c := Default()
	text, err := Source(name)
	if err != nil {
		return c, err
	}
	if err := decode(name, text, &c); err != nil {
		return c, err
	}
	for _, o := range overrides {
		doc, err := override(o)
		if err != nil {
			return c, err
		}
		if err := decode("--set "+o, doc, &c); err != nil {
			return c, err
		}
	}
	return c, c.Validate()
}

// decode reads one YAML document strictly over c. An empty document changes nothing.
func decode(name string, text []byte, c *Run) error {
	next := *c
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&next)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return milepost.E("configs: parse", milepost.KindInvalid, "%s: %s", name, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	*c = next
	return nil
}

// override turns a.b.c=value into the YAML document that sets it; the value is YAML itself.
func override(o string) ([]byte, error) {
	key, value, ok := strings.Cut(o, "=")
	parts := strings.Split(key, ".")
	if !ok || slices.Contains(parts, "") {
		return nil, milepost.E("configs: override", milepost.KindInvalid, "--set %s: want section.field=value", o)
	}
	var b strings.Builder
	for i, p := range parts {
		b.WriteString(strings.Repeat("  ", i) + p + ":")
		if i < len(parts)-1 {
			b.WriteByte('\n')
		}
	}
	b.WriteString(" " + value + "\n")
	return []byte(b.String()), nil
}

// Marshal is the whole resolved configuration as YAML.
func (c Run) Marshal() ([]byte, error) {
	b, err := yaml.MarshalWithOptions(c, yaml.Indent(2), yaml.IndentSequence(true))
	return b, milepost.Wrap("configs: write", milepost.KindInternal, err)
}
