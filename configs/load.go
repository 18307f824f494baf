package configs

import (
	"bytes"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/policy"
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

// Load reads a configuration by file or shipped name, over the one that it extends where it does, puts the key=value
// overrides on top and validates the whole. An unknown field, a value of the wrong type or out of range is an error of
// kind invalid that names file and line (or the override), the field and what is allowed.
func Load(name string, overrides []string) (Run, error) {
	c := Default()
	set, err := layer(name, nil, &c)
	if err != nil {
		return c, err
	}
	for _, o := range overrides {
		text, err := override(o)
		if err != nil {
			return c, err
		}
		d := document{name: "--set " + o}
		if err := d.parse(text); err != nil {
			return c, err
		}
		set = append(set, d.set...)
		if err := decode(d.name, text, &c); err != nil {
			return c, err
		}
	}
	if c.Extends != "" {
		return c, milepost.E("configs: override", milepost.KindInvalid, "extends belongs in a file; give the other configuration with -c")
	}
	if err := c.Validate(); err != nil {
		return c, locate(c, set, err)
	}
	c.Server.Routes, c.Policy.Token.Routes = c.Trainer.RoutingReplay, c.Trainer.RoutingReplay
	c.Weights.Salted = c.Policy.Token.PrefixCache == policy.PrefixSalt
	c.Server.Transfer = c.Weights.ServerBackend()
	c.serveAdapters()
	return c, nil
}

// layer reads a configuration over c, after the one that it extends, and returns what both set, in order. above are the
// configurations that extend this one.
func layer(name string, above []string, c *Run) ([]setting, error) {
	text, err := Source(name)
	if err != nil {
		return nil, err
	}
	d := document{name: name, file: name}
	if slices.Contains(Names(), name) {
		d.name, d.file = name+".yaml", name+".yaml"
	}
	if err := d.parse(text); err != nil {
		return nil, err
	}
	var head struct {
		Extends string `yaml:"extends"`
	}
	if err := yaml.Unmarshal(text, &head); err != nil {
		return nil, milepost.E("configs: parse", milepost.KindInvalid, "%s: %w", d.name, err)
	}
	var set []setting
	if base := head.Extends; base != "" {
		if !slices.Contains(Names(), base) && !filepath.IsAbs(base) {
			base = filepath.Join(filepath.Dir(name), base)
		}
		if slices.Contains(above, base) || base == name {
			return nil, milepost.E("configs: parse", milepost.KindInvalid, "%s: extends: %s extends itself", d.name, base)
		}
		if set, err = layer(base, append(above, name), c); err != nil {
			return nil, err
		}
	}
	err = decode(d.name, text, c)
	c.Extends = ""
	return append(set, d.set...), err
}

// decode reads one YAML document that a document has checked strictly over c.
func decode(name string, text []byte, c *Run) error {
	next := *c
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&next); err != nil {
		return milepost.E("configs: parse", milepost.KindInvalid, "%s: %s", name, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	*c = next
	return nil
}

// overrideKey is a path of fields.
var overrideKey = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// override turns a.b.c=value into the YAML document that sets it. The value is YAML in one line; nothing behind the =
// is the empty text.
func override(o string) ([]byte, error) {
	const op = "configs: override"
	key, value, ok := strings.Cut(o, "=")
	value = strings.TrimSpace(value)
	switch {
	case !ok || !overrideKey.MatchString(key):
		return nil, milepost.E(op, milepost.KindInvalid, "--set %s: want section.field=value", o)
	case strings.Contains(value, "\n"):
		return nil, milepost.E(op, milepost.KindInvalid, "--set %s: the value has several lines; allowed: one, with \\n inside of double quotes", key)
	case strings.Contains(value, " #") && !strings.ContainsAny(value[:1], "\"'[{"):
		return nil, milepost.E(op, milepost.KindInvalid, "--set %s: # would begin a comment; put the value in quotes", o)
	case value == "":
		value = `""`
	}
	parts := strings.Split(key, ".")
	if whole := mapAbove(parts); whole != "" {
		return nil, milepost.E(op, milepost.KindInvalid, "--set %s: %s is set as a whole, for example --set '%s={KEY: value}'", o, whole, whole)
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

// mapAbove is the path of the map that a path leads into, "" where it leads into none: a map is replaced as a whole, so
// an override of one of its keys would drop the others unseen.
func mapAbove(parts []string) string {
	t := reflect.TypeFor[Run]()
	for i, name := range parts[:len(parts)-1] {
		if t.Kind() != reflect.Struct {
			return ""
		}
		f, ok := fieldNamed(t, name)
		if !ok {
			return ""
		}
		if t = f.Type; t.Kind() == reflect.Map {
			return strings.Join(parts[:i+1], ".")
		}
	}
	return ""
}

// Marshal is the whole resolved configuration as YAML.
func (c Run) Marshal() ([]byte, error) {
	b, err := yaml.MarshalWithOptions(c, yaml.Indent(2), yaml.IndentSequence(true))
	return b, milepost.Wrap("configs: write", milepost.KindInternal, err)
}
