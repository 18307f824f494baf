package casefile_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit/casefile"
)

// small is a case of one episode of one step; the tests below change one thing in it.
const small = `{"config": {}, "episodes": [{"id": "a-0", "group": "a",
 "task": {"id": "a", "kind": "bug_repair", "relevant_files": [], "target": {"t1": "PASSED", "t2": "PASSED"}},
 "baseline": {"trusted": true, "results": {"t1": "FAILED", "t2": "PASSED"}},
 "outcome": {"status": "completed", "reward": 1.0, "objectives": {}}, "final_state": "s1",
 "steps": [{"index": 0, "state": "s0", "valid": true, "executed": true, "exposures": [],
   "probe": {"status": "completed", "trusted": true, "results": {"t1": "PASSED", "t2": "PASSED"}, "continuity": "kept", "merge": null}}]}]}`

func TestDecodeInterns(t *testing.T) {
	c, err := casefile.Decode(strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	in := c.Inputs[0]
	if got := in.Episode.Steps[0].Probe.Report; len(in.Task.Tests) != 2 || !got.AllPassed() || in.Baseline.Report[0] != milepost.Failed {
		t.Errorf("tests %v, report %v, baseline %v", in.Task.Tests, got, in.Baseline.Report)
	}
	r, err := c.Recompute()
	if err != nil || r.Episodes[0].Steps[0].PhiVer != 1 || len(r.Warnings) != 0 {
		t.Errorf("%+v (error %v)", r, err)
	}
}

func TestEqualTasksAndBaselinesAreShared(t *testing.T) {
	c := decodeFile(t, filepath.Join(goldenDir, "milestone_grpo.json"))
	for _, in := range c.Inputs {
		if in.Task != c.Inputs[0].Task && in.Task.ID == c.Inputs[0].Task.ID || in.Task == c.Inputs[0].Task && in.Baseline != c.Inputs[0].Baseline {
			t.Fatalf("episode %s has its own task or baseline", in.Episode.ID)
		}
	}
}

func TestRefusals(t *testing.T) {
	for words, change := range map[string][2]string{
		`config: json: unknown field "lambda"`:                                                       {`"config": {}`, `"config": {"lambda": 1}`},
		`config: json: unknown field "w_verify"`:                                                     {`"config": {}`, `"config": {"milestone": {"w_verify": 1}}`},
		`json: unknown field "extra"`:                                                                {`"config": {}`, `"extra": 1, "config": {}`},
		`episode a-0: json: unknown field "colour"`:                                                  {`"group": "a",`, `"group": "a", "colour": 1,`},
		`episode a-0: step 0: json: unknown field "vaild"`:                                           {`"valid"`, `"vaild"`},
		`episode a-0: step 0: json: unknown field "continuty"`:                                       {`"continuity"`, `"continuty"`},
		`episode a-0: task: target of test "t1" is "FAILED"; allowed`:                                {`{"t1": "PASSED", "t2": "PASSED"}}`, `{"t1": "FAILED", "t2": "PASSED"}}`},
		`episode a-0: baseline: test "t1": `:                                                         {`"t1": "FAILED"`, `"t1": "BROKEN"`},
		`episode a-0: step 0: probe: test "t2": `:                                                    {`"t2": "PASSED"}, "continuity"`, `"t2": "passed"}, "continuity"`},
		`episode a-0: step 0: probe has results and partition`:                                       {`"merge": null`, `"partition": {}`},
		`episode a-0: outcome: status is "done"; allowed: [completed`:                                {`{"status": "completed", "reward"`, `{"status": "done", "reward"`},
		`episode a-0: outcome: there is no reward`:                                                   {`"reward": 1.0`, `"reward": null`},
		`episode a-0: "high" is not a number`:                                                        {`"reward": 1.0`, `"reward": "high"`},
		`episode a-0: 1e999 is not a number`:                                                         {`"reward": 1.0`, `"reward": 1e999`},
		`episode a-0: the reward, earned at its last step 0, is NaN`:                                 {`"reward": 1.0`, `"reward": NaN`},
		`episode a-0: the reward, earned at its last step 0, is -Inf`:                                {`"reward": 1.0`, `"reward": -Infinity`},
		`episode a-0: there is no group; allowed`:                                                    {`"group": "a",`, ``},
		`episode a-0: task: there is no id`:                                                          {`"task": {"id": "a", `, `"task": {`},
		`episode a-0: step 0: valid or executed is missing; allowed`:                                 {`"valid": true, `, ``},
		`episode a-0: step 0: valid or executed is missing`:                                          {`"executed": true`, `"executed": null`},
		`episode a-0: step 0: exposure 0: level is "glance"; allowed: search, read`:                  {`"exposures": []`, `"exposures": [{"path": "a", "level": "glance", "confidence": "high"}]`},
		`episode a-0: step 0: exposure 0: confidence is "High"; allowed: high, low`:                  {`"exposures": []`, `"exposures": [{"path": "a", "level": "read", "confidence": "High"}]`},
		`episode a-0: step 0: probe: continuity is "gone"; allowed: kept, lost`:                      {`"continuity": "kept"`, `"continuity": "gone"`},
		`config: casefile: decode: hgpo_k is of the wrong type: number 1.5; allowed: a whole number`: {`"config": {}`, `"config": {"hgpo_k": 1.5}`},
		`milestone.w_ver is of the wrong type: string, NaN or Infinity; allowed: a finite number`:    {`"config": {}`, `"config": {"milestone": {"w_ver": NaN}}`},
		`episode number 0 has no id`:                                                                 {`"id": "a-0", `, ``},
		`field estimator is "best"; allowed: one of dapo`:                                            {`"config": {}`, `"config": {"estimator": "best"}`},
		`episode a-0: estimator ppo_gae needs per-token values`:                                      {`"config": {}`, `"config": {"estimator": "ppo_gae"}`},
		`episode a-0 step 0: merge group "m" is not contiguous`:                                      {`"merge": null`, `"merge": {"id": "m", "size": 2, "index": 0}`},
		`episode a-0 step 0: its index is 5`:                                                         {`"index": 0`, `"index": 5`},
	} {
		text := strings.Replace(small, change[0], change[1], 1)
		if text == small {
			t.Fatalf("%q: nothing was changed", words)
		}
		c, err := casefile.Decode(strings.NewReader(text))
		if err == nil {
			_, err = c.Recompute()
		}
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v (kind %q), want %q", err, milepost.KindOf(err), words)
		}
	}
	if _, err := casefile.Decode(strings.NewReader(small + "{}")); err == nil || !strings.Contains(err.Error(), "more after the first JSON value") {
		t.Errorf("got %v", err)
	}
}

// A case without episodes is refused, whatever else it has; an empty list is a case of no results.
func TestCaseWithoutEpisodes(t *testing.T) {
	for _, text := range []string{`{}`, `null`, `{"config": {}}`, `{"episodes": null, "expected": []}`} {
		_, err := casefile.Decode(strings.NewReader(text))
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "the case has no episodes; allowed: an object with a list `episodes`") {
			t.Errorf("%s: %v", text, err)
		}
	}
	c, err := casefile.Decode(strings.NewReader(`{"episodes": []}`))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.Recompute(); err != nil || len(r.Episodes) != 0 {
		t.Errorf("%+v (error %v)", r, err)
	}
}

// Results whose tests are not exactly the task's, also as many others or the same and one more, are not trusted, and
// neither is such a baseline; both are warned about by place.
func TestOtherTestsAreNotTrusted(t *testing.T) {
	for words, change := range map[string][2]string{
		"episode a-0 step 0: probe is not trusted: ": {`"probe": {"status": "completed", "trusted": true, "results": {"t1": "PASSED", "t2"`,
			`"probe": {"status": "completed", "trusted": true, "results": {"t1": "PASSED", "t9"`},
		"episode a-0 step 0: probe is not trusted: probe has": {`"results": {"t1": "PASSED", "t2": "PASSED"}, "cont`, `"results": {"t1": "PASSED", "t2": "PASSED", "t3": "PASSED"}, "cont`},
		"task a: no verification credit: the baseline has no": {`"results": {"t1": "FAILED", "t2": "PASSED"}}`, `"results": {"t1": "FAILED", "t3": "PASSED"}}`},
		"task a: no verification credit: the baseline":        {`"results": {"t1": "FAILED", "t2": "PASSED"}}`, `"results": {"t1": "FAILED"}}`},
	} {
		text := strings.Replace(small, change[0], change[1], 1)
		if text == small {
			t.Fatalf("%q: nothing was changed", words)
		}
		c, err := casefile.Decode(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Recompute()
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], words) {
			t.Errorf("warnings %q, want %q", r.Warnings, words)
		}
		if s := r.Episodes[0].Steps[0]; s.PhiVer != 0 || s.R != 0 {
			t.Errorf("%q: %+v", words, s)
		}
	}
}

// An id may well contain what a non-finite number looks like.
func TestNonFiniteLiteralsInsideStrings(t *testing.T) {
	c, err := casefile.Decode(strings.NewReader(strings.Replace(small, `"id": "a-0"`, `"id": "NaN \"-Infinity"`, 1)))
	if err != nil || c.Inputs[0].Episode.ID != `NaN "-Infinity` {
		t.Fatalf("error %v", err)
	}
}

func TestEncode(t *testing.T) {
	var out bytes.Buffer
	if err := casefile.Encode(&out, nil); err != nil || out.String() != "[]\n" {
		t.Errorf("%q (error %v)", out.String(), err)
	}
	out.Reset()
	if err := casefile.Encode(&out, []milepost.EpisodeCredit{{ID: "x", Excluded: true}}); err != nil || !strings.Contains(out.String(), `"steps": null`) {
		t.Errorf("%q (error %v)", out.String(), err)
	}
}

// FuzzCase feeds any bytes: an error of kind invalid, or credit that is finite and survives its own encoding.
func FuzzCase(f *testing.F) {
	f.Add([]byte(small))
	for _, name := range []string{"partition_counts", "repo_generation_merged", "milestone_hgpo", "milestone_mo_grpo"} {
		data, err := os.ReadFile(filepath.Join(goldenDir, name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := casefile.Decode(bytes.NewReader(data))
		if err == nil {
			_, err = c.Recompute()
		}
		if err != nil {
			if milepost.KindOf(err) != milepost.KindInvalid {
				t.Fatalf("kind %q: %v", milepost.KindOf(err), err)
			}
			return
		}
		r, err := c.Recompute()
		if err != nil {
			t.Fatalf("the second time: %v", err)
		}
		for _, e := range r.Episodes {
			for _, s := range e.Steps {
				for _, x := range values(s) {
					if math.IsNaN(x) || math.IsInf(x, 0) {
						t.Fatalf("episode %s: %+v", e.ID, s)
					}
				}
			}
		}
		var out bytes.Buffer
		var back []milepost.EpisodeCredit
		if err := casefile.Encode(&out, r.Episodes); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		compare(t, back, r.Episodes)
	})
}
