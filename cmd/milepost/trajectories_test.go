package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/benchmarks/trajectories"
)

// chatRow is a resolved trajectory in chat form, its second call one of no known tool.
const chatRow = `{"instance_id":"org__repo-1","resolved":true,"exit_status":"submit","tools":[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}},` +
	`{"type":"function","function":{"name":"submit","parameters":{"type":"object"}}}],"messages":[{"role":"system","content":"S"},{"role":"user","content":"U"},` +
	`{"role":"assistant","content":"I look.","tool_calls":[{"id":"a","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]},{"role":"tool","tool_call_id":"a","content":"a.py"},` +
	`{"role":"assistant","content":"","tool_calls":[{"id":"b","function":{"name":"grep","arguments":"{}"}}]},{"role":"tool","tool_call_id":"b","content":"no such tool"},` +
	`{"role":"assistant","content":"Done.","tool_calls":[{"id":"c","function":{"name":"submit","arguments":"{}"}}]}]}`

func TestTrajectoriesCommand(t *testing.T) {
	dir := t.TempDir()
	good, bad, out := filepath.Join(dir, "good.jsonl"), filepath.Join(dir, "bad.jsonl"), filepath.Join(dir, "out")
	write(t, good, chatRow+"\n")
	write(t, bad, chatRow+"\n"+strings.Replace(chatRow, `"role":"system"`, `"role":"robot"`, 1)+"\n")
	report := filepath.Join(dir, "report.json")
	write(t, report, `{"resolved_ids":[],"unresolved_ids":["org__repo-1"]}`)
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"trajectories", "check", good}, exitDone, []string{"1 trajectories in 1 files", "formats: 1 chat", "turns not trained: 1 unknown tool grep"}},
		{[]string{"trajectories", "check", bad}, exitUsage, []string{"faulty: ", "bad.jsonl: row 2 (org__repo-1): field messages[0].role: \"robot\"; allowed: system", "1 records are faulty"}},
		{[]string{"trajectories", "show", good}, exitDone, []string{"org__repo-1\tchat\tresolved\t3 turns, 1 masked\tsubmit\t" + good + ":1"}},
		{[]string{"trajectories", "show", good, "--id", "org__repo-1"}, exitDone, []string{"--- system\nS", "--- turn 2, not trained: unknown tool grep", "> bash {\"command\":\"ls\"}", "--- answer\na.py"}},
		{[]string{"trajectories", "show", good, "--id", "x"}, exitFailed, []string{`no trajectory "x" among 1`}},
		{[]string{"trajectories", "import", good}, exitUsage, []string{"--out is missing"}},
		{[]string{"trajectories", "import", "--out", out}, exitUsage, []string{"no file"}},
		{[]string{"trajectories", "import", bad, "--out", out}, exitUsage, []string{"row 2 (org__repo-1): field messages[0].role"}},
		{[]string{"trajectories", "import", good, "--out", out, "--tool-format", "xml"}, exitUsage, []string{`tool format "xml" is not one of`}},
		{[]string{"trajectories", "import", good, "--out", out, "--report", report}, exitFailed, []string{"none is kept: 1 not resolved"}},
		{[]string{"trajectories", "import", good, "--out", out}, exitDone, []string{out + ": 1 demonstrations of 1 trajectories, 2 trained turns"}},
		{[]string{"trajectories", "import", good, "--out", out}, exitFailed, []string{"holds an import already"}},
	} {
		code, output := command(t, c.args...)
		for _, want := range c.says {
			if code != c.code || !strings.Contains(output, want) {
				t.Errorf("%v: exit code %d, want %d and %q in\n%s", c.args, code, c.code, want, output)
			}
		}
	}
	got, err := (demoSource{file: out}).demos()
	if err != nil || got != filepath.Join(out, trajectories.DemosFile) {
		t.Errorf("rft takes %q, %v", got, err)
	}
	if _, err := (demoSource{file: dir}).demos(); err == nil || !strings.Contains(err.Error(), "holds no demos.jsonl") {
		t.Errorf("a folder without demonstrations: %v", err)
	}
	if data, err := os.ReadFile(got); err != nil || !strings.Contains(string(data), `"train":false`) {
		t.Errorf("demonstrations %s, %v", data, err)
	}
}
