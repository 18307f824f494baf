package configs

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/confdoc"
)

// document is the one mapping of a configuration, checked against the fields of its type before anything is decoded: the
// decoder alone would cut 1.5 down to 1, leave further documents unread and name neither field nor what is allowed.
type document struct {
	name string       // file or override, for messages
	file string       // "" for an override, which has no lines
	of   reflect.Type // what it must fit; nil = [Run]
	set  []setting    // the leaves that it sets, in order
}

// setting is one field that a document sets.
type setting struct {
	path string // for example schedule.group_size
	at   string // for example quickstart.yaml:41
}

// parse reads text, which must be one non-empty mapping that fits the type. Errors are of kind invalid and begin with the
// place.
func (d *document) parse(text []byte) error {
	if !utf8.Valid(text) {
		return d.fail(nil, "the text is not valid UTF-8")
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return d.failLine(at.GetToken().Position.Line, "%s", at.GetMessage())
		}
		return d.fail(nil, "%w", err)
	}
	docs := slices.DeleteFunc(slices.Clone(file.Docs), func(n *ast.DocumentNode) bool { return n.Body == nil })
	switch {
	case len(docs) == 0:
		return d.fail(nil, "no field is set; the shipped configurations show how: %s", strings.Join(Names(), ", "))
	case len(file.Docs) > 1:
		return d.fail(file.Docs[1].Body, "a second YAML document begins; allowed: one")
	}
	of := d.of
	if of == nil {
		of = reflect.TypeFor[Run]()
	}
	return d.check(docs[0].Body, of, "")
}

// at is the place of a node: file:line, or the override.
func (d *document) at(n ast.Node) string {
	if d.file == "" || n == nil || n.GetToken() == nil {
		return d.name
	}
	return fmt.Sprintf("%s:%d", d.file, n.GetToken().Position.Line)
}

func (d *document) fail(n ast.Node, format string, args ...any) error {
	return milepost.E("configs: parse", milepost.KindInvalid, "%s: %w", d.at(n), fmt.Errorf(format, args...))
}

func (d *document) failLine(line int, format string, args ...any) error {
	at := d.name
	if d.file != "" {
		at = fmt.Sprintf("%s:%d", d.file, line)
	}
	return milepost.E("configs: parse", milepost.KindInvalid, "%s: %w", at, fmt.Errorf(format, args...))
}

// check holds a node to the type of the field at path and notes the leaves.
func (d *document) check(n ast.Node, t reflect.Type, path string) error {
	switch n.Type() {
	case ast.AnchorType, ast.AliasType, ast.TagType, ast.MergeKeyType:
		return d.fail(n, "%s: anchors, aliases and tags are not part of a configuration", path)
	}
	if t.Kind() == reflect.Struct {
		return d.section(n, t, path)
	}
	d.set = append(d.set, setting{path: path, at: d.at(n)})
	return d.value(n, t, path)
}

// section checks a mapping whose keys are the fields of a struct; one without a content sets nothing.
func (d *document) section(n ast.Node, t reflect.Type, path string) error {
	if n.Type() == ast.NullType && path != "" {
		return nil
	}
	m, ok := n.(ast.MapNode)
	if !ok {
		return d.wrong(n, path, "a mapping of "+strings.Join(fieldNames(t), ", "))
	}
	for it := m.MapRange(); it.Next(); {
		key := it.Key()
		name := key.String()
		if _, ok := key.(*ast.StringNode); ok {
			name = key.(*ast.StringNode).Value
		}
		f, ok := fieldNamed(t, name)
		if !ok {
			return d.fail(key, "%s: unknown field; allowed: %s", join(path, name), strings.Join(fieldNames(t), ", "))
		}
		if err := d.check(it.Value(), f.Type, join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// value checks a node that is not a section.
func (d *document) value(n ast.Node, t reflect.Type, path string) error {
	if t == reflect.TypeFor[time.Duration]() {
		s, ok := n.(*ast.StringNode)
		if ok {
			_, err := time.ParseDuration(s.Value)
			ok = err == nil
		}
		return d.require(ok, n, path, "a duration such as 90s, 2m or 1h30m")
	}
	switch t.Kind() {
	case reflect.Pointer:
		if n.Type() == ast.NullType {
			return nil
		}
		return d.value(n, t.Elem(), path)
	case reflect.Bool:
		return d.require(n.Type() == ast.BoolType, n, path, "true or false")
	case reflect.Int, reflect.Int32, reflect.Int64:
		return d.require(isInteger(n, t), n, path, "a whole number")
	case reflect.Float64:
		return d.require(isNumber(n), n, path, "a number")
	case reflect.String:
		_, ok := n.(ast.ScalarNode)
		return d.require(ok && n.Type() != ast.NullType, n, path, "text")
	case reflect.Slice:
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			return d.wrong(n, path, "a list such as [a, b]")
		}
		for i, item := range list.Values {
			if err := d.item(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		m, ok := n.(ast.MapNode)
		if !ok {
			return d.wrong(n, path, "a mapping")
		}
		for it := m.MapRange(); it.Next() && t.Elem().Kind() != reflect.Interface; {
			if err := d.value(it.Value(), t.Elem(), join(path, it.Key().String())); err != nil {
				return err
			}
		}
	default:
		return milepost.E("configs: parse", milepost.KindInternal, "%s has type %s, which no rule covers; add one to document.value", path, t)
	}
	return nil
}

// item checks an element of a list, which may be a section of its own.
func (d *document) item(n ast.Node, t reflect.Type, path string) error {
	if t.Kind() == reflect.Struct {
		return d.section(n, t, path)
	}
	return d.value(n, t, path)
}

func (d *document) require(ok bool, n ast.Node, path, allowed string) error {
	if ok {
		return nil
	}
	return d.wrong(n, path, allowed)
}

// wrong says that what stands at path is of another type than allowed.
func (d *document) wrong(n ast.Node, path, allowed string) error {
	if path == "" {
		path = "the configuration"
	}
	switch n.Type() {
	case ast.NullType:
		return d.fail(n, "%s is empty; allowed: %s", path, allowed)
	case ast.MappingType, ast.MappingValueType:
		return d.fail(n, "%s is a mapping; allowed: %s", path, allowed)
	case ast.SequenceType:
		return d.fail(n, "%s is a list; allowed: %s", path, allowed)
	}
	text := n.GetToken().Value
	if most := 100; len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if n.Type() == ast.StringType {
		text = strconv.Quote(text)
	}
	return d.fail(n, "%s is %s; allowed: %s", path, text, allowed)
}

// exponent matches a number such as 1e-6, which the parser takes for text and the decoder for a number.
var exponent = regexp.MustCompile(`^[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+$`)

// isNumber says whether a node is a number, one that is not finite included: the ranges are checked later.
func isNumber(n ast.Node) bool {
	switch n.Type() {
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		return true
	}
	return n.Type() == ast.StringType && n.GetToken().Type == token.StringType && exponent.MatchString(n.GetToken().Value)
}

// isInteger says whether a node is a whole number that fits t.
func isInteger(n ast.Node, t reflect.Type) bool {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return false
	}
	switch v := i.Value.(type) {
	case int64:
		return !reflect.New(t).Elem().OverflowInt(v)
	case uint64:
		return v <= math.MaxInt64 && !reflect.New(t).Elem().OverflowInt(int64(v))
	}
	return false
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// yamlName is the name of a field in a file, "" where it has none.
func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if name == "-" {
		return ""
	}
	return name
}

// fields are the fields of a section, those of structs that are written inline in their place.
func fields(t reflect.Type) []reflect.StructField {
	var out []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		if !confdoc.Inline(f) {
			out = append(out, f)
			continue
		}
		for _, inner := range fields(f.Type) {
			inner.Index = append([]int{i}, inner.Index...)
			out = append(out, inner)
		}
	}
	return out
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for _, f := range fields(t) {
		if name := yamlName(f); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range fields(t) {
		if name != "" && yamlName(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}
