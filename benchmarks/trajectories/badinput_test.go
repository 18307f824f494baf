package trajectories

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/dataset"
)

// Every fault names file, row and field, and with SkipInvalid the rows around it come through.
func TestBadRows(t *testing.T) {
	broken := func(change func(r obj, m []any)) string {
		r := row()
		change(r, r["trajectory"].([]any))
		return asJSON(r)
	}
	for want, line := range map[string]string{
		"row 2 (org__repo-1): line 2: column trajectory: not JSON": asJSON(row())[:700],
		"not UTF-8 at byte": strings.Replace(asJSON(row()), "é", "\xe9", 1),
		`row 2 (t1): field trajectory[2]: call 1, to "execute_bash", has no result before the next turn`: broken(func(r obj, m []any) { r["trajectory"] = append(m[:3:3], m[4:]...) }),
		`row 2 (t1): field trajectory[3]: a tool's result for call "zz"`:                                 broken(func(_ obj, m []any) { m[3].(obj)["tool_call_id"] = "zz" }),
		`row 2 (t1): field trajectory[2]: a tool's result before any call`:                               broken(func(_ obj, m []any) { m[2] = obj{"role": "tool", "content": "x"} }),
		`row 2 (t1): field trajectory[3]: a system message behind others`:                                broken(func(_ obj, m []any) { m[3].(obj)["role"] = "system" }),
		`row 2 (t1): field trajectory[3]: a user message where the result of the call to "execute_bash"`: broken(func(_ obj, m []any) { m[3].(obj)["role"] = "user" }),
		`row 2 (t1): field trajectory[3].role: "robot"; allowed: system, user, assistant, tool`:          broken(func(_ obj, m []any) { m[3].(obj)["role"] = "robot" }),
		`row 2 (t1): field trajectory[3].tool_calls: calls of tool`:                                      broken(func(_ obj, m []any) { m[3].(obj)["tool_calls"] = []any{callOf("c", "x", "{}")} }),
		`row 2 (t1): field trajectory[2].tool_calls[0].function.name: missing`:                           broken(func(_ obj, m []any) { m[2].(obj)["tool_calls"] = []any{callOf("c1", "", "{}")} }),
		`row 2 (t1): field trajectory[2].content[0].type: "image_url"; allowed: text`:                    broken(func(_ obj, m []any) { m[2].(obj)["content"] = []any{obj{"type": "image_url"}} }),
		`row 2 (t1): field messages: no user message before the first turn`:                              broken(func(r obj, m []any) { r["trajectory"] = append(m[:1:1], m[2:]...) }),
		`row 2 (t1): field messages: no assistant message`:                                               broken(func(r obj, m []any) { r["trajectory"] = m[:2] }),
		`row 2 (t1): field trajectory: `:                                                                 broken(func(r obj, _ []any) { r["trajectory"] = 3 }),
		`row 2 (t1): field resolved: true, false, 1 or 0 is wanted, not "maybe"`:                         broken(func(r obj, _ []any) { r["resolved"] = "maybe" }),
		`row 2 (t1): field exit_status: a text is wanted`:                                                broken(func(r obj, _ []any) { r["exit_status"] = []int{1} }),
		`row 2 (t1): field tools[0].function.name: missing`:                                              broken(func(r obj, _ []any) { r["tools"] = []any{obj{"function": obj{}}} }),
		`row 2 (t1): field tools[0].function.parameters: no JSON schema`: broken(func(r obj, _ []any) {
			r["tools"] = []any{obj{"function": obj{"name": "x", "parameters": obj{"type": "thing"}}}}
		}),
		`row 2: field (all): no trajectory of a known form; known are swe-agent (`: `{"instance_id":"i","patch":"x"}`,
	} {
		good := row()
		good["trajectory_id"] = "behind"
		good["trajectory"].([]any)[1].(obj)["content"] = "Another."
		file := put(t, "rows.jsonl", asJSON(row())+"\n"+line+"\n"+asJSON(good)+"\n")
		o := options("", file)
		_, err := Import(context.Background(), o)
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		o.SkipInvalid = true
		o.Out = filepath.Join(t.TempDir(), "out")
		demos, _, sum := imported(t, o)
		if len(demos) != 2 || sum.Faulty != 1 || !strings.Contains(sum.Faults[0], want) {
			t.Errorf("skipping: %d demonstrations, faults %q, want %s", len(demos), sum.Faults, want)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for want, file := range map[string]string{
		"not JSON (cut off, or another format)":       put(t, "a.traj", asJSON(miniText())[:200]),
		"not UTF-8":                                   put(t, "b.traj", "{\"a\": \"\xff\"}"),
		"byte 7: half of a surrogate pair":            put(t, "g.traj", `{"a": "\udc80"}`),
		"neither an object nor a list of objects":     put(t, "c.json", "[1, 2]"),
		"holds no trajectories: files that end in":    t.TempDir(),
		"history[0]: ":                                put(t, "d.jsonl", `{"instance_id":"i","history":[3]}`),
		"tool_call_metadata.model_response.choices: ": put(t, "e.json", `[{"source":"user","action":"message","args":{"content":"U"}},{"source":"agent","action":"run","tool_call_metadata":{"tool_call_id":"c","function_name":"x","model_response":{}}}]`),
		`is no call of the response`:                  put(t, "f.json", `[{"source":"user","action":"message","args":{"content":"U"}},{"source":"agent","action":"run","tool_call_metadata":{"tool_call_id":"c","function_name":"x","model_response":{"choices":[{"message":{"role":"assistant","content":"x"}}]}}}]`),
	} {
		_, err := Import(context.Background(), options("", file))
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("got  %v\nwant %s in %s", err, want, file)
		}
	}
}

// A row of 100 MB is refused by name without being held whole, and the rows behind it come through.
func TestHugeRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(s string) {
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"instance_id":"huge","messages":[{"role":"user","content":"`)
	for range 100 {
		write(strings.Repeat("x", 1<<20))
	}
	write("\"}]}\n" + asJSON(row()) + "\n")
	o := options("", path)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Import(context.Background(), o)
	runtime.ReadMemStats(&after)
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "row 1 (huge): line 1: larger than") {
		t.Errorf("error %v", err)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 6*dataset.MaxRow {
		t.Errorf("reading it allocated %d MiB", grown>>20)
	}
	o.SkipInvalid = true
	if demos, _, sum := imported(t, o); len(demos) != 1 || sum.Faulty != 1 {
		t.Errorf("%d demonstrations, faults %q", len(demos), sum.Faults)
	}
}
