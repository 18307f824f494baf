package predictions

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func ptr(s string) *string { return &s }

func genPredictions() *rapid.Generator[[]Prediction] {
	one := rapid.Custom(func(t *rapid.T) Prediction {
		p := Prediction{InstanceID: rapid.StringMatching(`[a-z]{1,8}__[a-z]{1,8}-[0-9]{1,4}`).Draw(t, "id"), Model: rapid.String().Draw(t, "model")}
		if rapid.Bool().Draw(t, "given") {
			p.Patch = ptr(rapid.String().Draw(t, "patch"))
		}
		return p
	})
	return rapid.SliceOfNDistinct(one, 1, 8, func(p Prediction) string { return p.InstanceID })
}

// TestRoundTrip: what is written is read back as it was, in both forms, null apart from "".
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genPredictions().Draw(t, "predictions")
		for name, write := range map[string]func(*bytes.Buffer) error{
			"SWE-bench": func(b *bytes.Buffer) error { return Write(b, want) },
			"Pro":       func(b *bytes.Buffer) error { return WritePro(b, want) },
		} {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			got, err := Read(&b, "file")
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: %+v, %v; want %+v\n%s", name, got, err, want, text)
			}
		}
	})
}

func TestReadForms(t *testing.T) {
	want := []Prediction{{"a__b-1", "m/n", ptr("diff")}, {"a__b-2", "m/n", nil}}
	for name, in := range map[string]string{
		"lines":     "\ufeff" + `{"instance_id":"a__b-1","model_name_or_path":"m/n","model_patch":"diff"}` + "\n\n" + `{"instance_id":"a__b-2","model_name_or_path":"m/n","model_patch":null}`,
		"array":     `[{"instance_id":"a__b-1","model_name_or_path":"m/n","model_patch":"diff"},{"instance_id":"a__b-2","model_name_or_path":"m/n","model_patch":null}]`,
		"by id":     `{"a__b-2":{"model_name_or_path":"m/n","model_patch":null},"a__b-1":{"instance_id":"a__b-1","model_name_or_path":"m/n","model_patch":"diff","model_cost":3}}`,
		"Pro":       `[{"instance_id":"a__b-1","patch":"diff","prefix":"m/n"},{"instance_id":"a__b-2","patch":null,"prefix":"m/n"}]`,
		"Pro lines": `{"instance_id":"a__b-1","patch":"diff","prefix":"m/n"}` + "\n" + `{"instance_id":"a__b-2","patch":null,"prefix":"m/n"}`,
	} {
		if got, err := Read(strings.NewReader(in), "file"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for in, want := range map[string]string{
		"":                                      "file: holds no prediction",
		"x":                                     "file: line 1: not a JSON object",
		`{"model_patch":"d"}`:                   "line 1: not a JSON object",
		`[{"model_patch":"d"}]`:                 "entry 1: field instance_id: missing or empty",
		`[{"instance_id":"a","model_patch":3}]`: "entry 1: field model_patch: a string or null",
		`[{"instance_id":"a"}]`:                 "entry 1: neither field model_patch",
		`[{"instance_id":"a","patch":""}`:       "not a JSON array",
		`{"b":{"instance_id":"a","model_patch":""}}`:                      `entry "b": field instance_id: "a" stands under "b"`,
		`[{"instance_id":"a","model_patch":"\udc80"}]`:                    `entry 1: \udc80 is half of a surrogate pair`,
		"[{\"instance_id\":\"a\",\"model_patch\":\"\xff\"}]":              "entry 1: not UTF-8",
		`[{"instance_id":"a","patch":""},{"instance_id":"a","patch":""}]`: `entry 2: field instance_id: "a" is also in entry 1`,
	} {
		if in == `{"model_patch":"d"}` {
			want = `entry "model_patch": not a JSON object`
		}
		if got, err := Read(strings.NewReader(in), "file"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %q", in, got, err, want)
		}
	}
}

func TestReportRoundTrip(t *testing.T) {
	dataset := []string{"d-4", "d-1", "d-2", "d-3", "d-5", "d-6"}
	list := []Prediction{{"d-1", "m", ptr("x")}, {"d-2", "m", ptr("x")}, {"d-3", "m", ptr("")}, {"d-5", "m", ptr("x")}, {"d-6", "m", ptr("x")}, {"other", "m", nil}}
	graded := map[string]Instance{
		"d-1": {PatchExists: true, PatchSuccessfullyApplied: true, Resolved: true, TestsStatus: &TestsStatus{FailToPass: Tests{Success: []string{"t"}, Failure: []string{}}}},
		"d-2": {PatchExists: true, InfraFailure: true, InfraFailureReason: "disk full"},
		"d-6": {PatchExists: true},
	}
	r := Summarise(dataset, list, graded)
	if r.Total != 6 || r.Submitted != 6 || r.Completed != 3 || r.Resolved != 1 || r.Unresolved != 2 || r.Infra != 1 || r.Empty != 1 || r.Errors != 1 ||
		strings.Join(r.IncompleteIDs, ",") != "d-4" || r.FailureReasons["d-2"] != "disk full" {
		t.Errorf("%+v", r)
	}
	var b bytes.Buffer
	if err := WriteRun(&b, r); err != nil {
		t.Fatal(err)
	}
	// The names and order of SWE-bench's own file.
	if !strings.HasPrefix(b.String(), "{\n    \"total_instances\": 6,\n    \"submitted_instances\": 6,\n") || strings.Contains(b.String(), "null") {
		t.Errorf("report:\n%s", b.String())
	}
	if got, err := ReadRun(&b, "file"); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	b.Reset()
	if err := WriteInstances(&b, graded); err != nil {
		t.Fatal(err)
	}
	got, err := ReadInstances(&b, "file")
	if err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(graded)
	if have, _ := json.Marshal(got); string(have) != string(want) {
		t.Errorf("%s\nwant %s", have, want)
	}
}

func TestBadReports(t *testing.T) {
	for in, want := range map[string]string{
		"{":                    "no report of a run",
		`{"schema_version":1}`: "field schema_version: 1; 2 is read",
		`{"schema_version":2,"resolved_instances":2,"resolved_ids":["a"]}`:     "field resolved_ids: 1 ids, their count says 2",
		`{"schema_version":2,"resolved_instances":2,"resolved_ids":["a","a"]}`: `field resolved_ids: "a" is there twice`,
	} {
		if _, err := ReadRun(strings.NewReader(in), "file"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", in, err, want)
		}
	}
	for in, want := range map[string]string{
		`[]`:                      "no object of reports",
		`{"a":{}}`:                `instance "a": field resolved: missing`,
		`{"a":{"resolved":"no"}}`: `instance "a"`,
	} {
		if _, err := ReadInstances(strings.NewReader(in), "file"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", in, err, want)
		}
	}
}
