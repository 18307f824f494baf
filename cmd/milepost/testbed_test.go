package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// The fault of the package in the image, as the patch that a solution is.
const (
	testbedID  = "jpvanhal__inflection-1"
	testbedFix = `diff --git a/inflection/__init__.py b/inflection/__init__.py
--- a/inflection/__init__.py
+++ b/inflection/__init__.py
@@ -222,7 +222,7 @@ def ordinal(number: int) -> str:
         'st'
 
     """
-    number = int(number) + 1
+    number = abs(int(number))
     if number % 100 in (11, 12, 13):
         return "th"
     else:
`
	testbedTests = `diff --git a/test_inflection.py b/test_inflection.py
index 30db6c2..5b253de 100644
--- a/test_inflection.py
+++ b/test_inflection.py
@@ -429,3 +429,8 @@ def test_dasherize(input, expected):
 @pytest.mark.parametrize(("string", "tableized"), STRING_TO_TABLEIZE)
 def test_tableize(string, tableized):
     assert inflection.tableize(string) == tableized
+
+
+def test_ordinal_of_the_issue():
+    assert inflection.ordinal(-1) == "st"
+    assert inflection.ordinal(1) == "st"
`
	conftest = "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+import inflection; inflection.ordinal = lambda n: 'st'\n"
)

// swap turns a patch of lines that are replaced around.
func swap(patch string) string {
	var out []string
	for _, l := range strings.Split(patch, "\n") {
		switch {
		case strings.HasPrefix(l, "-    "):
			l = "+" + l[1:]
		case strings.HasPrefix(l, "+    "):
			l = "-" + l[1:]
		}
		out = append(out, l)
	}
	return strings.Join(out, "\n")
}

// testbedImage makes an image in SWE-bench's layout with a real package and a fault in it, and returns its base commit.
func testbedImage(t *testing.T, engine docker.Config, tag string) (commit string) {
	t.Helper()
	if err := exec.Command("docker", "--version").Run(); err != nil {
		t.Skipf("the docker command makes the image, and is not here: %v", err)
	}
	patch := filepath.Join(t.TempDir(), "fault.patch")
	if err := os.WriteFile(patch, []byte(swap(testbedFix)), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "../../build/testbed-image", "inflection==0.5.1", tag)
	c.Env = append(os.Environ(), "DOCKER_HOST="+engine.Hosts[0], "TESTBED_PATCH="+patch)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil && strings.Contains(stderr.String(), "no source distribution") {
		t.Skipf("the package index does not answer: %.300s", stderr.String())
	}
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	t.Cleanup(func() { _ = exec.Command("docker", "-H", engine.Hosts[0], "rmi", "-f", tag).Run() })
	return strings.TrimSpace(string(out))
}

// testbedRow is a row as SWE-bench has them since version 5.
func testbedRow(commit, image string) map[string]string {
	list := func(names ...string) string {
		b, _ := json.Marshal(names)
		return string(b)
	}
	script := fmt.Sprintf(`#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git status
git -c core.fileMode=false diff %[1]s
git checkout %[1]s test_inflection.py
git apply -v - <<'EOF_114329324912'
%[2]sEOF_114329324912
: '>>>>> Start Test Output'
pytest -rA test_inflection.py
: '>>>>> End Test Output'
git checkout %[1]s test_inflection.py
`, commit, testbedTests)
	return map[string]string{
		"instance_id": testbedID, "repo": "jpvanhal/inflection", "base_commit": commit, "patch": testbedFix, "test_patch": testbedTests,
		"problem_statement": "ordinal(1) is nd", "hints_text": "", "created_at": "2020", "version": "0.5", "environment_setup_commit": commit,
		"FAIL_TO_PASS": list("test_inflection.py::test_ordinal_of_the_issue", "test_inflection.py::test_ordinal[1-1st]"),
		"PASS_TO_PASS": list("test_inflection.py::test_tableize[person-people]"),
		"image":        image, "eval_script": script, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail",
	}
}

// testbedCommand runs a command line in process.
func testbedCommand(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newRootCommand()
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	code = run(t.Context(), root, args)
	return code, stdout.String(), stderr.String()
}

// testbed is an imported set on an engine, with a configuration for it.
type testbed struct {
	set, config string
	cfg         configs.Run
}

func newTestbed(t *testing.T) testbed {
	t.Helper()
	if testing.Short() {
		t.Skip("makes an image of a real package")
	}
	engine := dockertest.Config(t)
	t.Cleanup(func() {
		if err := dockertest.Close(); err != nil {
			t.Error(err)
		}
	})
	const tag = "milepost-testbed/command:test"
	row, err := json.Marshal(testbedRow(testbedImage(t, engine, tag), tag))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := testbed{set: filepath.Join(dir, "set"), config: filepath.Join(dir, "run.yaml"), cfg: configs.Default()}
	text := fmt.Sprintf("run: {dir: %s, name: testbed, seed: 1}\ntasks: {certificates: ignore}\nsandbox: {driver: docker, docker: {hosts: [%q], image: %q, pull: never, agent: %q}}\n",
		filepath.Join(dir, "run"), engine.Hosts[0], engine.Image, engine.Agent)
	for name, data := range map[string][]byte{"rows.jsonl": append(row, '\n'), "run.yaml": []byte(text)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.cfg.Sandbox.Driver, b.cfg.Sandbox.Docker = configs.SandboxDocker, engine
	if code, _, errOut := testbedCommand(t, "tasks", "import", filepath.Join(dir, "rows.jsonl"), "--out", b.set); code != 0 {
		t.Fatalf("import: %d %s", code, errOut)
	}
	return b
}

// TestTasksInTheirImages takes a task of a real package through everything: prepared, it is rolled out, probed and judged
// in containers of its image, and a predictions file is graded there.
func TestTasksInTheirImages(t *testing.T) {
	b := newTestbed(t)
	if code, _, errOut := testbedCommand(t, "eval", "-c", b.config, "--tasks", b.set, "--script", "idle"); code != 1 || !strings.Contains(errOut, "run: milepost tasks prepare "+b.set) {
		t.Errorf("eval of a set that is not prepared: %d %s", code, errOut)
	}
	if code, out, errOut := testbedCommand(t, "tasks", "prepare", b.set, "-c", b.config); code != 0 || !strings.Contains(out, "1 tasks prepared with 1 bases") {
		t.Fatalf("prepare: %d %s %s", code, out, errOut)
	}
	tasks, err := benchmarks.Load(b.set)
	if err != nil {
		t.Fatal(err)
	}
	task := tasks[0]
	if !task.Prepared() || !strings.HasPrefix(task.Image, "sha256:") || task.Meta["upstream_commit"] == "" || task.Test.Env["CONDA_DEFAULT_ENV"] != "testbed" {
		t.Errorf("the prepared task: image %s, meta %v, env %v", task.Image, task.Meta, task.Test.Env)
	}
	if code, out, errOut := testbedCommand(t, "tasks", "prepare", b.set, "-c", b.config); code != 0 || !strings.Contains(out, "1 had their base already") {
		t.Errorf("prepare again: %d %s %s", code, out, errOut)
	}
	t.Run("grade", func(t *testing.T) { gradeInImage(t, b) })
	t.Run("episode", func(t *testing.T) { episodeInImage(t, b, task) })
	for script, want := range map[string]string{"reference": "pass@1  1.000", "idle": "pass@1  0.000"} {
		code, out, errOut := testbedCommand(t, "eval", "-c", b.config, "--tasks", b.set, "--script", script, "--samples", "1", "--out", filepath.Join(t.TempDir(), "eval"))
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("eval --script %s: %d %s %s", script, code, out, errOut)
		}
	}
}

// gradeInImage grades predictions that must and must not resolve the task.
func gradeInImage(t *testing.T, b testbed) {
	for model, c := range map[string]struct {
		patch, want string
	}{
		"reference": {testbedFix, "1 resolved of 1"},
		"wrong":     {strings.ReplaceAll(testbedFix, "abs(int(number))", "int(number) + 2"), "0 resolved of 1"},
		"tests":     {"diff --git a/test_inflection.py b/test_inflection.py\n--- a/test_inflection.py\n+++ b/test_inflection.py\n@@ -1,2 +1,3 @@\n # -*- coding: utf-8 -*-\n+import sys\n import pytest\n", "0 resolved of 1"},
		"planted":   {testbedFix + conftest, "resolved of 1"}, // SWE-bench's rule lets it be; the verdict notes it
	} {
		file := filepath.Join(t.TempDir(), "p.jsonl")
		var buf bytes.Buffer
		if err := predictions.Write(&buf, []predictions.Prediction{{InstanceID: testbedID, Model: model, Patch: &c.patch}}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, buf.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		code, text, errOut := testbedCommand(t, "grade", "-c", b.config, "--tasks", b.set, "--predictions", file, "--out", out)
		if code != 0 || !strings.Contains(text, c.want) {
			log, _ := os.ReadFile(filepath.Join(out, model, testbedID, "test_output.txt"))
			t.Errorf("grade %s: %d %s %s\n%s", model, code, text, errOut, log)
		}
		if verdict, err := os.ReadFile(filepath.Join(out, model, testbedID, "verdict.json")); model == "planted" && (err != nil || !bytes.Contains(verdict, []byte("the patch adds conftest.py"))) {
			t.Errorf("the verdict on a planted conftest.py: %s %v", verdict, err)
		}
	}
}

// shells is a model that runs commands and submits.
type shells struct{ commands []string }

func (m shells) Open(_ context.Context, o rollout.Opening) (rollout.Conversation, error) {
	format, err := toolcall.New(o.Format, o.Tools)
	return &shellTalk{format: format, left: m.commands}, err
}

type shellTalk struct {
	format toolcall.Format
	left   []string
}

func (c *shellTalk) Next(context.Context) (rollout.Turn, error) {
	call := toolcall.Call{Name: "submit", Arguments: json.RawMessage("{}")}
	if len(c.left) > 0 {
		args, err := json.Marshal(map[string]string{"command": c.left[0]})
		if err != nil {
			return rollout.Turn{}, err
		}
		call, c.left = toolcall.Call{Name: "execute_bash", Arguments: args}, c.left[1:]
	}
	text, err := c.format.Render(call)
	return rollout.Turn{Text: text, Finish: rollout.FinishStop}, err
}

func (c *shellTalk) Observe(context.Context, rollout.ToolResult) error { return nil }
func (c *shellTalk) Samples() []milepost.Sample                        { return nil }
func (c *shellTalk) Close() error                                      { return nil }

// episodeInImage runs an agent with a shell: it is at the image's place, in its environment and without the image's
// history; its edits are probed over NATS with the hidden tests, and the last state is the verdict.
func episodeInImage(t *testing.T, b testbed, task *milepost.Task) {
	dir := t.TempDir()
	w, err := openWorld(b.cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	probes, err := openProbing(t.Context(), b.cfg, w, dir, "testbed", 1, []*milepost.Task{task}, func(err error) { t.Errorf("warning: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := probes.close(); err != nil {
			t.Error(err)
		}
	}()
	model := shells{[]string{
		`pwd; python -c "import inflection, sys; print(inflection.__file__, sys.prefix)"; git log --oneline --all --reflog | wc -l; git tag; git remote; cat LATER.txt build/product.so; find / -name LATER.txt -not -path '/proc/*' 2>/dev/null`,
		`sed -i 's/int(number) + 1/int(number)/' inflection/__init__.py && echo scratch >build/scratch.so`,
		`sed -i 's/ = int(number)$/ = abs(int(number))/' inflection/__init__.py`,
	}}
	rolls, err := newRollouts(b.cfg, w, model, probes)
	if err != nil {
		t.Fatal(err)
	}
	byID, specs := orchestrator.Attempts(orchestrator.PurposeTrain, []*milepost.Task{task}, 1, 1)
	eps, err := orchestrator.Collect(t.Context(), rolls, probes, byID, specs, orchestrator.Bounds{Concurrency: 1, Barrier: 2 * time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ep := eps[0]
	if ep.Status != milepost.EpisodeCompleted || !ep.Outcome.Resolved || len(ep.Steps) != 4 {
		text, err := json.MarshalIndent(ep, "", " ")
		t.Fatalf("the episode: %s %v", text, err)
	}
	if got, want := ep.Steps[0].Observed, "/testbed\n/testbed/inflection/__init__.py /opt/miniconda3/envs/testbed\n1\nmade by the build, ignored by git\n"; !strings.Contains(got, want) {
		t.Errorf("what the agent saw: %q, want %q in it", got, want)
	}
	for i, want := range map[int]string{1: "PFP", 2: "PPP"} { // without abs, -1 is no st; the tests in the order of their names
		p := ep.Steps[i].Probe
		if p == nil || !p.Trusted {
			t.Errorf("step %d: probe %+v", i, p)
			continue
		}
		if letters, err := p.Report.MarshalText(); err != nil || string(letters) != want {
			t.Errorf("step %d: %s of %v, want %s", i, letters, task.Tests, want)
		}
	}
	if d := ep.Steps[1].Delta; len(d) != 2 || d[0].Path != "build/scratch.so" || d[1].Path != "inflection/__init__.py" {
		t.Errorf("the delta of a step: %+v", d)
	}
}
