package configs

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// locate adds to an error of [Run.Validate] where the fields that it is about were set. Those are the settings without
// which the error would not be the same: each is put back to its default in turn, so no rule has to say twice which
// field it is about. Where the error names some of them it is about those alone: without others, another error came first.
// Where a field was set more than once the last place counts.
func locate(c Run, set []setting, err error) error {
	last := map[string]int{}
	for i, s := range set {
		last[s.path] = i
	}
	var about []setting
	for i, s := range set {
		if last[s.path] != i {
			continue
		}
		without := c
		reset(reflect.ValueOf(&without).Elem(), reflect.ValueOf(Default()), strings.Split(s.path, "."))
		if other := without.Validate(); other == nil || other.Error() != err.Error() {
			about = append(about, s)
		}
	}
	if len(about) == 0 {
		return err
	}
	message := inner(err).Error()
	if named := slices.DeleteFunc(slices.Clone(about), func(s setting) bool { return !names(message, s.path) }); len(named) > 0 {
		about = named
	}
	var places []string
	for _, s := range about {
		places = append(places, s.at+": "+s.path)
	}
	return milepost.E("configs: validate", milepost.KindInvalid, "%s: %w", strings.Join(places, ", "), inner(err))
}

// names says whether the message of an error of [Run.Validate] names the field at path: as a whole, or by its end where
// the message begins with a section that the field lies in.
func names(message, path string) bool {
	if word(message, path) {
		return true
	}
	section, rest, _ := strings.Cut(message, ": ")
	end, ok := strings.CutPrefix(path, section+".")
	for ok && !word(rest, end) {
		_, end, ok = strings.Cut(end, ".")
	}
	return ok
}

// word says whether text has a path as a word of its own, and not as the end of a longer one.
func word(text, path string) bool {
	return regexp.MustCompile(`(^|[^\w.])` + regexp.QuoteMeta(path) + `($|\W)`).MatchString(text)
}

// inner is err without the operation that [milepost.Error] puts before it.
func inner(err error) error {
	if e, ok := err.(*milepost.Error); ok && e.Err != nil { //nolint:errorlint // the outermost only
		return e.Err
	}
	return err
}

// reset copies the field at path from one struct into another of the same type.
func reset(into, from reflect.Value, path []string) {
	for _, name := range path {
		f, ok := fieldNamed(into.Type(), name)
		if !ok {
			return
		}
		into, from = into.FieldByIndex(f.Index), from.FieldByIndex(f.Index)
	}
	into.Set(from)
}
