package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

func TestEpisode(t *testing.T) {
	w := memoryWorld(t, nil)
	w.cfg.SystemPrompt, w.cfg.TaskPrompt = "sys", "Solve: {statement}\nLeave alone:\n{protected}"
	m := &script{turns: []say{
		call("search", `{"query":"add"}`),
		call("read_file", `{"path":"a.py"}`),
		edit("a.py", "a - b", "a + b"),
		call("read_file", `{"path":"a.py"}`),
		create("é/neu.py", "x = 'ü'\n"),
		call("edit_file", `{"command":"delete","path":"crlf.txt"}`),
		call("read_file", `{"view":"status"}`),
		call("submit", `{}`),
	}}
	e := w.run(context.Background(), m)
	if e.Status != milepost.EpisodeCompleted || e.Stop != milepost.StopSubmit || e.Error != "" || len(e.Steps) != 8 {
		t.Fatalf("%s %s %q, %d steps", e.Status, e.Stop, e.Error, len(e.Steps))
	}
	if e.ID != "e1" || e.Group != "g" || e.Task != "task" || e.Attempt != 2 || e.Endpoint != "scripted" || !e.Started.Equal(time.Unix(1000, 0)) {
		t.Errorf("head of the episode: %+v", e)
	}
	s := e.Steps
	base := w.task.BaseTree
	for i, want := range []string{
		rollout.StateKey(base, nil), rollout.StateKey(base, nil), rollout.StateKey(base, []string{"a.py"}),
		rollout.StateKey(s[2].Tree, []string{"a.py"}), rollout.StateKey(s[2].Tree, []string{"a.py"}),
	} {
		if s[i].State != want {
			t.Errorf("step %d: state %s, want %s", i, s[i].State, want)
		}
	}
	if e.FinalState != rollout.StateKey(s[5].Tree, []string{"a.py"}) {
		t.Errorf("final state %s", e.FinalState)
	}
	if got := s[5].Changed; !reflect.DeepEqual(got, []string{"crlf.txt"}) || len(s[5].Delta) != 3 {
		t.Errorf("changed %v, delta %v", got, s[5].Delta)
	}
	if s[2].Observed != "ok" || s[6].Observed != "M a.py\nD crlf.txt\nA é/neu.py\n" || s[3].Observed != "def add(a, b):\n    return a + b\n" {
		t.Errorf("observed %q %q %q", s[2].Observed, s[6].Observed, s[3].Observed)
	}
	if s[1].TokenStart != 6 || s[1].TokenEnd != 10 || len(e.Samples) != 1 || len(e.Samples[0].Tokens) != 40 {
		t.Errorf("tokens [%d, %d) of %d", s[1].TokenStart, s[1].TokenEnd, len(e.Samples[0].Tokens))
	}
	if string(s[1].Action.Arguments) != `{"path":"a.py"}` || s[1].Action.Tool != "read_file" || !strings.Contains(s[1].Action.Text, "<tool_call>") {
		t.Errorf("action %+v", s[1].Action)
	}
	o := m.opening
	if len(o.Messages) != 2 || o.Messages[1].Content != "Solve: add subtracts\nLeave alone:\ntests/\nbin.dat" || o.Session != "e1" || o.Seed != 7 ||
		o.Format != "hermes" || len(o.Tools) != 5 || o.Task != w.task || o.Sampling.MaxTurnTokens != w.cfg.MaxTurnTokens {
		t.Errorf("opening %+v", o)
	}
	if m.closed != 1 || len(m.observed) != 7 || m.observed[2] != (rollout.ToolResult{Tool: "edit_file", Text: "ok"}) {
		t.Errorf("closed %d times, observed %+v", m.closed, m.observed)
	}
}

func TestQwenFormat(t *testing.T) {
	w := memoryWorld(t, nil)
	w.cfg.ToolFormat = toolcall.Qwen3Coder
	w.cfg.MaxTurns = 2
	e := w.run(context.Background(), &script{turns: []say{
		text("<tool_call>\n<function=edit_file>\n<parameter=command>\ninsert\n</parameter>\n<parameter=path>\na.py\n</parameter>\n<parameter=line>\n1\n</parameter>\n<parameter=text>\n\n    # one\n</parameter>\n</function>\n</tool_call>"),
		text("<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=start>\nsoon\n</parameter>\n</function>\n</tool_call>"),
	}})
	if s := e.Steps[0]; !s.Valid || s.Observed != "ok" {
		t.Errorf("insert: %+v", s)
	}
	if s := e.Steps[1]; s.Violation != milepost.ViolationSchema || s.Observed != "error: read_file: start: got string, want integer" {
		t.Errorf("schema: %+v", s)
	}
}

func TestStops(t *testing.T) {
	look := call("search", `{"query":"add"}`)
	fails := func(err error) say {
		return func(context.Context) (rollout.Turn, error) { return rollout.Turn{}, err }
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cases := []struct {
		name   string
		change func(*world, *script)
		status milepost.EpisodeStatus
		stop   milepost.StopReason
		steps  int
		error  string
	}{
		{"turns", func(w *world, m *script) { w.cfg.MaxTurns = 2; m.turns = []say{look, look, look} }, milepost.EpisodeLimit, milepost.StopTurns, 2, ""},
		{"tokens", func(w *world, m *script) { w.cfg.MaxTokens = 9; m.turns = []say{look, look, look, look} }, milepost.EpisodeLimit, milepost.StopTokens, 3, ""},
		{"context in Next", func(w *world, m *script) {
			m.turns = []say{look, fails(milepost.E("x", milepost.KindLimit, "the context is full"))}
		}, milepost.EpisodeLimit, milepost.StopContext, 1, ""},
		{"context in Open", func(w *world, m *script) { m.open = milepost.E("x", milepost.KindLimit, "too long") }, milepost.EpisodeLimit, milepost.StopContext, 0, ""},
		{"wall between turns", func(w *world, m *script) {
			m.turns = []say{look, func(ctx context.Context) (rollout.Turn, error) { w.clock.advance(time.Hour); return look(ctx) }}
		}, milepost.EpisodeLimit, milepost.StopWall, 2, ""},
		{"wall in Next", func(w *world, m *script) {
			m.turns = []say{look, func(ctx context.Context) (rollout.Turn, error) {
				w.clock.advance(time.Hour)
				<-ctx.Done()
				return rollout.Turn{}, milepost.Wrap("model: next", milepost.KindUnavailable, ctx.Err())
			}}
		}, milepost.EpisodeLimit, milepost.StopWall, 1, ""},
		{"canceled in Next", func(w *world, m *script) {
			m.turns = []say{look, func(c context.Context) (rollout.Turn, error) {
				cancel()
				<-c.Done()
				return rollout.Turn{}, c.Err()
			}}
		}, milepost.EpisodeCancelled, milepost.StopCanceled, 1, ""},
		{"endpoint gone", func(w *world, m *script) {
			m.turns = []say{look, fails(milepost.E("policy: next", milepost.KindUnavailable, "no endpoint left"))}
		}, milepost.EpisodeInfra, milepost.StopError, 1, "policy: next: no endpoint left"},
		{"unknown error", func(w *world, m *script) { m.turns = []say{fails(errors.New("odd"))} }, milepost.EpisodeInfra, milepost.StopError, 0, "odd"},
		{"open fails", func(w *world, m *script) { m.open = milepost.E("x", milepost.KindUnavailable, "down") }, milepost.EpisodeInfra, milepost.StopError, 0, "x: down"},
		{"panic", func(w *world, m *script) {
			m.turns = []say{look, func(context.Context) (rollout.Turn, error) { panic("boom") }}
		}, milepost.EpisodeInfra, milepost.StopError, 1, "rollout: run: panic: boom"},
		{"samples contradict", func(w *world, m *script) { m.badStep = true; m.turns = []say{look} }, milepost.EpisodeInfra, milepost.StopError, 2, "rollout: check samples: token 1 lies in the range of step 0 but was sampled by step 1"},
		{"no tokens", func(w *world, m *script) { m.noToken = true }, milepost.EpisodeCompleted, milepost.StopSubmit, 1, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w, m := memoryWorld(t, nil), &script{}
			c.change(w, m)
			use := context.Background()
			if c.stop == milepost.StopCanceled {
				use = ctx
			}
			e := w.run(use, m)
			if e.Status != c.status || e.Stop != c.stop || len(e.Steps) != c.steps || e.Error != c.error {
				t.Errorf("%s %s %q with %d steps", e.Status, e.Stop, e.Error, len(e.Steps))
			}
			if m.open == nil && m.closed != 1 {
				t.Errorf("the conversation was closed %d times", m.closed)
			}
		})
	}
}

func TestInfrastructure(t *testing.T) {
	t.Run("no sandbox", func(t *testing.T) {
		w := memoryWorld(t, nil, memory.WithCreate(func(*driver.Spec) error { return errors.New("disk full") }))
		e := w.run(context.Background(), &script{})
		if e.Status != milepost.EpisodeInfra || e.Stop != milepost.StopError || !strings.Contains(e.Error, "disk full") || len(e.Steps) != 0 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("sandbox dies", func(t *testing.T) {
		w := memoryWorld(t, func(_ context.Context, c *memory.Call) int { c.Fail = errors.New("engine gone"); return 0 })
		e := w.run(context.Background(), &script{turns: []say{edit("a.py", "a - b", "a + b"), bash("ls")}})
		if e.Status != milepost.EpisodeInfra || !strings.Contains(e.Error, "engine gone") || len(e.Steps) != 2 || e.Steps[1].Executed {
			t.Errorf("%s %q %+v", e.Status, e.Error, e.Steps)
		}
	})
	t.Run("prober fails", func(t *testing.T) {
		w := memoryWorld(t, nil)
		w.probe.err = errors.New("no server")
		e := w.run(context.Background(), &script{turns: []say{edit("a.py", "a - b", "a + b")}})
		if e.Status != milepost.EpisodeCompleted || e.Steps[0].Probe.Reason != "not published: no server" || e.Outcome.Verdict.Reason == "" {
			t.Errorf("%s %+v", e.Status, e.Steps[0].Probe)
		}
	})
	t.Run("canceled in a tool", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := memoryWorld(t, func(c context.Context, _ *memory.Call) int { cancel(); <-c.Done(); return 1 })
		e := w.run(ctx, &script{turns: []say{bash("sleep 100")}})
		if e.Status != milepost.EpisodeCancelled || e.Stop != milepost.StopCanceled || len(e.Steps) != 1 || e.Steps[0].Executed {
			t.Errorf("%s %s %+v", e.Status, e.Stop, e.Steps)
		}
	})
	t.Run("out of time in a tool", func(t *testing.T) {
		var w *world
		w = memoryWorld(t, func(c context.Context, call *memory.Call) int {
			if err := call.Files.WriteFile("late.py", []byte("x\n"), 0o644); err != nil {
				t.Error(err)
			}
			w.clock.advance(time.Hour)
			<-c.Done()
			return 1
		})
		e := w.run(context.Background(), &script{turns: []say{bash("sleep 100")}})
		if e.Status != milepost.EpisodeLimit || e.Stop != milepost.StopWall || len(e.Steps) != 1 || !reflect.DeepEqual(e.Steps[0].Changed, []string{"late.py"}) {
			t.Errorf("%s %s %+v", e.Status, e.Stop, e.Steps)
		}
		if e.Duration != time.Hour || e.Steps[0].ToolTime != time.Hour {
			t.Errorf("took %v, tool %v", e.Duration, e.Steps[0].ToolTime)
		}
	})
	t.Run("no prober, no step probes", func(t *testing.T) {
		w := memoryWorld(t, nil)
		turns := []say{edit("a.py", "a - b", "a + b")}
		deps := w.deps(&script{turns: turns})
		deps.Prober = nil
		if e := runWith(t, w, deps); e.Steps[0].Probe != nil || e.Outcome.Verdict != nil || e.Steps[0].Delta == nil {
			t.Errorf("%+v", e.Steps[0])
		}
		w.cfg.ProbeSteps = false
		if e := runWith(t, w, w.deps(&script{turns: turns})); e.Steps[0].Probe != nil || e.Outcome.Verdict == nil || len(w.probe.got) != 1 {
			t.Errorf("%+v", e)
		}
	})
}

func runWith(t *testing.T, w *world, deps rollout.Deps) *milepost.Episode {
	t.Helper()
	r, err := rollout.New(w.cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Run(context.Background(), rollout.Request{Episode: "e", Task: w.task})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestMisuse(t *testing.T) {
	w := memoryWorld(t, nil)
	r, err := rollout.New(w.cfg, w.deps(&script{open: milepost.E("x", milepost.KindInvalid, "no template")}))
	if err != nil {
		t.Fatal(err)
	}
	wrong := *w.task
	wrong.BaseTree = strings.Repeat("0", 40)
	gone := *w.task
	gone.BaseTree, gone.Repo = strings.Repeat("1", 40), gone.Repo+"/nowhere"
	for name, req := range map[string]rollout.Request{
		"Request.Episode is empty": {Task: w.task}, "Request.Task is missing": {Episode: "e"},
		strings.Repeat("0", 40): {Episode: "e", Task: &wrong}, "nowhere": {Episode: "e", Task: &gone}, "no template": {Episode: "e", Task: w.task},
	} {
		e, err := r.Run(context.Background(), req)
		if k := milepost.KindOf(err); e != nil || (k != milepost.KindInvalid && k != milepost.KindNotFound) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	for want, change := range map[string]func(*rollout.Config){
		"max_turns: 0":          func(c *rollout.Config) { c.MaxTurns = 0 },
		"max_tokens: -1":        func(c *rollout.Config) { c.MaxTokens = -1 },
		"max_turn_tokens: 0":    func(c *rollout.Config) { c.MaxTurnTokens = 0 },
		"max_context: -1":       func(c *rollout.Config) { c.MaxContext = -1 },
		"wall: 0s":              func(c *rollout.Config) { c.Wall = 0 },
		"tool_wait: -1ns":       func(c *rollout.Config) { c.ToolWait = -1 },
		"temperature: -1":       func(c *rollout.Config) { c.Temperature = -1 },
		"top_p: 0":              func(c *rollout.Config) { c.TopP = 0 },
		`tool_format: "xml"`:    func(c *rollout.Config) { c.ToolFormat = "xml" },
		`bash_writes: "maybe"`:  func(c *rollout.Config) { c.BashWrites = "maybe" },
		"task_prompt: {stateme": func(c *rollout.Config) { c.TaskPrompt = "go" },
		"tools.read_lines: 0":   func(c *rollout.Config) { c.Tools.ReadLines = 0 },
	} {
		cfg := rollout.Default()
		change(&cfg)
		if _, err := rollout.New(cfg, w.deps(&script{})); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := rollout.New(w.cfg, rollout.Deps{}); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("no parts: %v", err)
	}
}

func TestForm(t *testing.T) {
	shape := "; a call looks like\n<tool_call>\n{\"name\": \"TOOL\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call>"
	submit := "<tool_call>\n{\"name\": \"submit\", \"arguments\": {}}\n</tool_call>"
	calls := func(calls ...rollout.ToolCall) say {
		return func(context.Context) (rollout.Turn, error) {
			return rollout.Turn{Text: "hm", Calls: append([]rollout.ToolCall{}, calls...), Finish: rollout.FinishStop}, nil
		}
	}
	cut := func(context.Context) (rollout.Turn, error) {
		return rollout.Turn{Text: submit, Finish: rollout.FinishLength}, nil
	}
	for _, c := range []struct {
		turn      say
		violation milepost.Violation
		answer    rollout.ToolResult
	}{
		{text("I am done."), milepost.ViolationParse, rollout.ToolResult{Text: "error: no <tool_call> found" + shape}},
		{text("<tool_call>\n{\"name\": \"sub"), milepost.ViolationParse, rollout.ToolResult{Text: "error: call 1: the JSON object is never closed" + shape}},
		{text(submit + submit), milepost.ViolationParse, rollout.ToolResult{Text: "error: 2 calls in one turn; make exactly one"}},
		{text("\xff\xfe"), milepost.ViolationParse, rollout.ToolResult{Text: "error: no <tool_call> found" + shape}},
		{cut, milepost.ViolationParse, rollout.ToolResult{Text: "error: the turn was cut off after 4 tokens" + shape}},
		{call("grep", `{}`), milepost.ViolationSchema, rollout.ToolResult{Tool: "grep", Text: `error: unknown tool "grep"; the tools are search, read_file, edit_file, execute_bash, submit`}},
		{call("read_file", `{"path":3}`), milepost.ViolationSchema, rollout.ToolResult{Tool: "read_file", Text: "error: read_file: path: got number, want string"}},
		{calls(), milepost.ViolationParse, rollout.ToolResult{Text: "error: no tool call found"}},
		{calls(rollout.ToolCall{ID: "1", Name: "read_file", Arguments: []byte(`{"path"`)}), milepost.ViolationParse, rollout.ToolResult{CallID: "1", Tool: "read_file", Text: "error: the arguments of read_file are not a JSON object"}},
		{calls(rollout.ToolCall{ID: "1", Name: "read_file", Arguments: []byte(`"a"`)}), milepost.ViolationParse, rollout.ToolResult{CallID: "1", Tool: "read_file", Text: "error: the arguments of read_file are not a JSON object"}},
		{calls(rollout.ToolCall{ID: "1", Name: "submit"}, rollout.ToolCall{ID: "2", Name: "submit"}), milepost.ViolationParse, rollout.ToolResult{Text: "error: 2 calls in one turn; make exactly one"}},
		{calls(rollout.ToolCall{ID: "9", Name: "read_file", Arguments: []byte(`{"path":"pkg/b.py"}`)}), "", rollout.ToolResult{CallID: "9", Tool: "read_file", Text: "B = 1\n"}},
	} {
		w := memoryWorld(t, nil)
		m := &script{turns: []say{c.turn}}
		e := w.run(context.Background(), m)
		s := e.Steps[0]
		if s.Violation != c.violation || s.Executed != (c.violation == "") || m.observed[0] != c.answer || s.Observed != c.answer.Text {
			t.Errorf("%+v\nanswer %+v\nwant   %+v", s, m.observed[0], c.answer)
		}
		if e.Status != milepost.EpisodeCompleted || len(e.Steps) != 2 {
			t.Errorf("%s with %d steps", e.Status, len(e.Steps))
		}
	}
}

func TestStateKey(t *testing.T) {
	k := rollout.StateKey("t", []string{"b", "a", "b"})
	if k != rollout.StateKey("t", []string{"a", "b"}) || len(k) != 16 {
		t.Errorf("key %s", k)
	}
	for _, other := range []string{rollout.StateKey("t", []string{"a"}), rollout.StateKey("u", []string{"a", "b"}), rollout.StateKey("t", []string{"ab"}), rollout.StateKey("t", nil)} {
		if other == k {
			t.Errorf("two states share %s", k)
		}
	}
}

// What a tree cannot hold is rolled back and told, without blame.
func TestTooLarge(t *testing.T) {
	w := memoryWorld(t, nil)
	w.env = env.New(memory.New(memory.WithProgram(func(_ context.Context, c *memory.Call) int {
		if err := c.Files.WriteFile("huge.bin", make([]byte, 5000), 0o644); err != nil {
			t.Error(err)
		}
		return 0
	})), env.WithMaxRead(4000))
	e := w.run(context.Background(), &script{turns: []say{edit("a.py", "a - b", "a + b"), bash("yes > huge.bin"), call("search", `{"kind":"file","query":"huge"}`)}})
	s := e.Steps[1]
	if !s.Valid || !s.Executed || s.Tree != e.Steps[0].Tree || !strings.HasPrefix(s.Observed, "rolled back: ") || !strings.Contains(s.Observed, "larger") {
		t.Errorf("%+v", s)
	}
	if e.Steps[2].Observed != "no matches" {
		t.Errorf("the file is still there: %s", e.Steps[2].Observed)
	}
}

// The configuration is read strictly, over the defaults.
func TestConfigYAML(t *testing.T) {
	cfg := rollout.Default()
	text := "max_turns: 14\nwall: 90s\nbash_writes: forbid\nsandbox:\n  wall: 5s\ntools:\n  names: [read_file, submit]\n  descriptions: {read_file: ''}\n  line_numbers: true\n  bash_timeout: 2s\n"
	if err := yaml.UnmarshalWithOptions([]byte(text), &cfg, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	want := rollout.Default()
	want.MaxTurns, want.Wall, want.BashWrites, want.Sandbox.Wall = 14, 90*time.Second, rollout.BashWritesForbid, 5*time.Second
	want.Tools.Names, want.Tools.Descriptions, want.Tools.LineNumbers, want.Tools.BashTimeout = []string{"read_file", "submit"}, map[string]string{"read_file": ""}, true, 2*time.Second
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got  %+v\nwant %+v", cfg, want)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if err := yaml.UnmarshalWithOptions([]byte("max_truns: 3\n"), &cfg, yaml.Strict()); err == nil {
		t.Error("an unknown field was taken")
	}
}
