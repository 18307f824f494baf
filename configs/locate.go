package configs

import (
	"reflect"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// locate adds to an error of [Run.Validate] where the fields that it is about were set. Those are the settings without
// which the error would not be the same: each is put back to its default in turn, so no rule has to say twice which
// field it is about. Where a field was set more than once the last place counts.
func locate(c Run, set []setting, err error) error {
	last := map[string]int{}
	for i, s := range set {
		last[s.path] = i
	}
	var places []string
	for i, s := range set {
		if last[s.path] != i {
			continue
		}
		without := c
		reset(reflect.ValueOf(&without).Elem(), reflect.ValueOf(Default()), strings.Split(s.path, "."))
		if other := without.Validate(); other == nil || other.Error() != err.Error() {
			places = append(places, s.at+": "+s.path)
		}
	}
	if len(places) == 0 {
		return err
	}
	return milepost.E("configs: validate", milepost.KindInvalid, "%s: %w", strings.Join(places, ", "), inner(err))
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
