package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// fix is one line of a reference patch.
type fix struct{ file, old, new string }

// fixes reads the lines that a patch of single-line changes exchanges.
func fixes(t *testing.T, patch string) []fix {
	t.Helper()
	var out []fix
	file, old := "", ""
	for line := range strings.SplitSeq(patch, "\n") {
		switch {
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimPrefix(line, "+++ b/")
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "-"):
			old = line[1:]
		case strings.HasPrefix(line, "+"):
			out = append(out, fix{file, old, line[1:]})
		}
	}
	if len(out) < 2 {
		t.Fatalf("the patch has %d fixes, want at least 2:\n%s", len(out), patch)
	}
	return out
}

// scripted is what one scaffold says to read a file, to make a fix and to hand in.
type scripted struct {
	scaffold, format string
	read             func(root, file string) (tool, args string)
	fix              func(root string, f fix) (tool, args string)
	submit           [2]string
}

func argsOf(pairs ...any) string {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }

// exchange is a shell command that makes a fix.
func exchange(f fix) string {
	return fmt.Sprintf("python3 -c %s %s %s %s", quote("import sys; p, a, b = sys.argv[1:]; s = open(p).read(); assert s.count(a) == 1; open(p, 'w').write(s.replace(a, b))"),
		quote(f.file), quote(f.old), quote(f.new))
}

func replacement(root string, f fix) (string, string) {
	return "str_replace_editor", argsOf("command", "str_replace", "path", path.Join(root, f.file), "old_str", f.old, "new_str", f.new)
}

var scriptedScaffolds = []scripted{
	{"milepost", toolcall.Hermes,
		func(_, file string) (string, string) { return "read_file", argsOf("path", file) },
		func(_ string, f fix) (string, string) {
			return "edit_file", argsOf("command", "replace", "path", f.file, "old", f.old, "new", f.new)
		}, [2]string{"submit", "{}"}},
	{"bash", toolcall.Hermes,
		func(_, file string) (string, string) { return "bash", argsOf("command", "cat "+quote(file)) },
		func(_ string, f fix) (string, string) { return "bash", argsOf("command", exchange(f)) },
		[2]string{"bash", argsOf("command", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")}},
	{"bash", toolcall.BashBlock,
		func(root, file string) (string, string) {
			return "", "cd " + root + " && cat " + quote(file)
		},
		func(_ string, f fix) (string, string) { return "", exchange(f) },
		[2]string{"", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}},
	{"swe_agent", toolcall.Hermes,
		func(root, file string) (string, string) {
			return "str_replace_editor", argsOf("command", "view", "path", path.Join(root, file))
		}, replacement, [2]string{"submit", "{}"}},
	{"openhands", toolcall.Hermes,
		func(root, file string) (string, string) {
			return "execute_bash", argsOf("command", "cat "+path.Join(root, file))
		}, replacement, [2]string{"finish", argsOf("message", "done")}},
}

// turns are the actions of a scaffold that solves a task: each file read before its fixes.
func (s scripted) turns(root string, all []fix) [][2]string {
	var out [][2]string
	last := ""
	for _, f := range all {
		if f.file != last {
			tool, args := s.read(root, f.file)
			out, last = append(out, [2]string{tool, args}), f.file
		}
		tool, args := s.fix(root, f)
		out = append(out, [2]string{tool, args})
	}
	return append(out, s.submit)
}

// endpoint says the turns in order; a turn without a tool is a block of text.
func endpoint(turns [][2]string) http.Handler {
	n := 0
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n == len(turns) {
			http.Error(w, `{"error":{"message":"the script is over"}}`, http.StatusBadRequest)
			return
		}
		message := map[string]any{"role": "assistant", "content": "```mswea_bash_command\n" + turns[n][1] + "\n```"}
		if tool := turns[n][0]; tool != "" {
			message = map[string]any{"role": "assistant", "content": "", "tool_calls": []any{map[string]any{"id": fmt.Sprint("c", n), "type": "function",
				"function": map[string]any{"name": tool, "arguments": turns[n][1]}}}}
		}
		n++
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"finish_reason": "stop", "message": message}},
			"usage": map[string]any{"completion_tokens": 9}})
	})
}

// TestScaffoldsEarnTheSameCredit: each scaffold solves a micro task by its own commands over a chat endpoint, in the real
// sandbox, probed by real tests. Probes, outcome and every number of the credit are the same by each.
func TestScaffoldsEarnTheSameCredit(t *testing.T) {
	needSandbox(t)
	cfg := configs.Default()
	dir := t.TempDir()
	w, err := openWorld(cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	task := microTask(t, w)
	probes, err := openProbing(t.Context(), cfg, w, dir, "scaffolds", 1, []*milepost.Task{task}, func(err error) { t.Errorf("warning: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := probes.close(); err != nil {
			t.Error(err)
		}
	}()
	engine, err := credit.New(cfg.Credit)
	if err != nil {
		t.Fatal(err)
	}
	baseline, err := probes.Baseline(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	all := fixes(t, task.ReferencePatch)
	var first *milepost.EpisodeCredit
	for i, s := range scriptedScaffolds {
		t.Run(s.scaffold+" "+s.format, func(t *testing.T) {
			cfg.Rollout.Scaffold, cfg.Rollout.ToolFormat = s.scaffold, s.format
			server := httptest.NewServer(endpoint(s.turns("/workspace", all)))
			defer server.Close()
			model, err := chatModel(server.URL+"/v1", "m", true)
			if err != nil {
				t.Fatal(err)
			}
			rolls, err := newRollouts(cfg, w, model, probes)
			if err != nil {
				t.Fatal(err)
			}
			spec := orchestrator.EpisodeSpec{ID: fmt.Sprintf("e/%d", i), Group: "g", Task: task.ID, Purpose: orchestrator.PurposeTrain}
			ep, err := rolls.Run(t.Context(), task, spec)
			if err != nil {
				t.Fatal(err)
			}
			eps := []*milepost.Episode{ep}
			if err := probes.Fill(t.Context(), eps, time.Minute); err != nil {
				t.Fatal(err)
			}
			if ep.Status != milepost.EpisodeCompleted || ep.Stop != milepost.StopSubmit || ep.Outcome.Verdict == nil || !ep.Outcome.Verdict.Trusted {
				t.Fatalf("%s %s %q, verdict %+v", ep.Status, ep.Stop, ep.Error, ep.Outcome.Verdict)
			}
			result, err := engine.Assign([]credit.Input{{Episode: ep, Task: task, Baseline: baseline}})
			if err != nil {
				t.Fatal(err)
			}
			got := result.Episodes[0]
			got.ID = ""
			if first == nil {
				first = &got
				earned := 0.0
				for _, step := range got.Steps {
					earned += step.P
				}
				if earned <= 0 {
					t.Errorf("the solution earns %v: %+v", earned, got)
				}
			}
			if !reflect.DeepEqual(&got, first) {
				t.Errorf("credit %+v\nthat of the first scaffold %+v", got, *first)
			}
		})
	}
}

// microTask makes one task of two faults, proven by its tests.
func microTask(t *testing.T, w *world) *milepost.Task {
	t.Helper()
	c := micro.DefaultConfig()
	c.Count, c.Split, c.Faults, c.Files, c.Seed = 1, micro.SplitTrain, 2, 2, 3
	tasks, err := micro.Make(t.Context(), c, &benchmarks.Checker{Bases: w.bases, Blobs: w.blobs, Runner: w.tests, Workers: 1}, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tasks[0]
}
