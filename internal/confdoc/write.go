package confdoc

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
)

// width is the longest line, in columns; a word or value that is longer by itself stays whole.
const width = 120

// Write gives value, a struct whose fields carry yaml tags, as a YAML document in which every field has its comment: behind
// the value where both fit into a line, else above it. Fields tagged "-" are left out, those of an embedded struct tagged ",inline" stand
// in its place. Errors are of kind invalid and name
// the field: one without a comment, one whose comment is written for readers of Go (it holds a [Link]), and one of a
// type that has no YAML form here.
func (s *Source) Write(value any) ([]byte, error) {
	w := writer{source: s}
	if err := w.fields(reflect.ValueOf(value), "", 0); err != nil {
		return nil, err
	}
	return []byte(w.text.String()), nil
}

type writer struct {
	source *Source
	text   strings.Builder
}

// fields writes every field of a struct at one depth; path is its place, "" or "section.".
func (w *writer) fields(v reflect.Value, path string, depth int) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := yamlName(f)
		if name == "-" {
			continue
		}
		if Inline(f) { // its fields stand among those of this one
			if err := w.fields(v.Field(i), path, depth); err != nil {
				return err
			}
			continue
		}
		comment, err := w.source.comment(v.Type(), f)
		if err != nil {
			return err
		}
		const op = "confdoc: write"
		at := fmt.Sprintf("field %s (%s.%s)", path+name, v.Type(), f.Name)
		switch {
		case comment == "":
			return milepost.E(op, milepost.KindInvalid, "%s has no comment; say at the struct what it means, its unit and what is allowed", at)
		case goLink.MatchString(comment):
			return milepost.E(op, milepost.KindInvalid, "the comment of %s holds the Go link %s; write it for readers of YAML", at, goLink.FindString(comment))
		}
		if depth == 0 && w.text.Len() > 0 {
			w.text.WriteByte('\n')
		}
		if isSection(f.Type) {
			w.line(depth, name+":", comment)
			if err := w.fields(v.Field(i), path+name+".", depth+1); err != nil {
				return err
			}
			continue
		}
		text, err := scalar(v.Field(i))
		if err != nil {
			return milepost.E(op, milepost.KindInvalid, "%s: %w", at, err)
		}
		w.line(depth, name+": "+text, comment)
	}
	return nil
}

// line writes an entry with its comment.
func (w *writer) line(depth int, entry, comment string) {
	indent := strings.Repeat("  ", depth)
	if line := indent + entry + " # " + comment; len([]rune(line)) <= width {
		w.text.WriteString(line + "\n")
		return
	}
	line := indent + "#"
	for _, word := range strings.Fields(comment) {
		if len([]rune(line))+1+len([]rune(word)) > width {
			w.text.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	w.text.WriteString(line + "\n" + indent + entry + "\n")
}

// goLink matches a Go doc link such as [Default] or [Client.Update]; [vllm] and [0, 1) are none.
var goLink = regexp.MustCompile(`\[\*?[A-Z][A-Za-z0-9_.]*\]`)

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if name == "" {
		return strings.ToLower(f.Name)
	}
	return name
}

// Inline reports whether the fields of an embedded struct are written among those of the struct that embeds it.
func Inline(f reflect.StructField) bool {
	_, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return f.Anonymous && options == "inline" && f.Type.Kind() == reflect.Struct
}

func isSection(t reflect.Type) bool { return t.Kind() == reflect.Struct }

// scalar is a value in one line of YAML.
func scalar(v reflect.Value) (string, error) {
	if d, ok := v.Interface().(time.Duration); ok {
		return duration(d), nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return "null", nil
		}
		return scalar(v.Elem())
	case reflect.Bool, reflect.String, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64:
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			return map[reflect.Kind]string{reflect.Slice: "[]", reflect.Map: "{}"}[v.Kind()], nil
		}
	default:
		return "", milepost.E("confdoc: value", milepost.KindInvalid, "a %s has no YAML form here; add a case to scalar", v.Type())
	}
	options := []yaml.EncodeOption{yaml.Flow(true)}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		options = append(options, yaml.JSON()) // quotes every string
	}
	b, err := yaml.MarshalWithOptions(v.Interface(), options...)
	if err != nil {
		return "", milepost.Wrap("confdoc: value", milepost.KindInvalid, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// duration is d without the parts that are 0: 2m, not 2m0s.
func duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
