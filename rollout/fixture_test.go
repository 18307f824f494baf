package rollout_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

var scratch string // holds the task's repository, which no test changes

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "rollout-test-*"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(scratch)
		os.Exit(code)
	}))
}

// files is the repository of the tests.
var files = map[string]string{
	"a.py":          "def add(a, b):\n    return a - b\n",
	"crlf.txt":      "one\r\ntwo\r\n",
	"é 日本.txt":      "naïve\n",
	"bin.dat":       "\x00\x01\x02",
	"pkg/b.py":      "B = 1\n",
	"pkg/run.sh":    "echo run\n",
	"tests/test.py": "import a\n",
}

// world is everything a Runner works with, over one task.
type world struct {
	t     testing.TB
	env   *env.Env
	bases *repo.Store
	blobs *repo.Blobs
	task  *milepost.Task
	cfg   rollout.Config
	probe *prober
	clock *clock
}

func newWorld(t testing.TB, d driver.Driver) *world {
	t.Helper()
	w := &world{t: t, env: env.New(d), cfg: rollout.Default(), probe: &prober{}, clock: &clock{now: time.Unix(1000, 0)}}
	t.Cleanup(func() {
		if n := w.env.Open(); n > 0 {
			t.Errorf("%d sandboxes left open", n)
		}
		if err := w.env.Close(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if w.bases, err = repo.NewStore(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if w.blobs, err = repo.NewBlobs(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	w.task = sharedTask(t)
	return w
}

// memoryWorld has no processes; program answers for bash.
func memoryWorld(t *testing.T, program memory.Program, opts ...memory.Option) *world {
	if program != nil {
		opts = append(opts, memory.WithProgram(program))
	}
	return newWorld(t, memory.New(opts...))
}

// localWorld is the real sandbox, confined where the machine can.
func localWorld(t testing.TB) *world {
	t.Helper()
	_, err := exec.LookPath("bwrap")
	d, err := local.New(local.Config{Root: t.TempDir(), Unconfined: err != nil})
	if err != nil {
		t.Skipf("no local sandbox here: %v", err)
	}
	return newWorld(t, d)
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

var task *milepost.Task

func sharedTask(t testing.TB) *milepost.Task {
	t.Helper()
	if task == nil {
		task = newTask(t, scratch)
	}
	return task
}

func newTask(t testing.TB, dir string) *milepost.Task {
	t.Helper()
	for name, text := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		if err := os.WriteFile(full, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a.py", filepath.Join(dir, "link.py")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q")
	git(t, dir, "-c", "core.autocrlf=false", "add", ".")
	git(t, dir, "commit", "-qm", "base")
	return &milepost.Task{
		ID: "task", Kind: milepost.BugRepair, Statement: "add subtracts", Repo: dir,
		BaseCommit: git(t, dir, "rev-parse", "HEAD"), BaseTree: git(t, dir, "rev-parse", "HEAD^{tree}"),
		Protected: []string{"tests/", "bin.dat"}, Tests: []string{"t"},
	}
}

// run runs one episode of the script.
func (w *world) run(ctx context.Context, model rollout.Model) *milepost.Episode {
	w.t.Helper()
	r, err := rollout.New(w.cfg, w.deps(model))
	if err != nil {
		w.t.Fatal(err)
	}
	e, err := r.Run(ctx, rollout.Request{Episode: "e1", Group: "g", Task: w.task, Attempt: 2, Seed: 7})
	if err != nil {
		w.t.Fatal(err)
	}
	w.check(e)
	return e
}

func (w *world) deps(model rollout.Model) rollout.Deps {
	return rollout.Deps{Env: w.env, Bases: w.bases, Blobs: w.blobs, Model: model, Prober: w.probe, Clock: w.clock, Log: slog.New(slog.DiscardHandler)}
}

// check holds an episode against what is true of every episode.
func (w *world) check(e *milepost.Episode) {
	w.t.Helper()
	if _, err := json.Marshal(e); err != nil {
		w.t.Errorf("the episode does not marshal: %v", err)
	}
	base, err := w.bases.Base(context.Background(), w.task)
	if err != nil {
		w.t.Fatal(err)
	}
	tree, probes := base.Tree, 0
	for i, s := range e.Steps {
		if s.Index != i || s.State == "" || s.Tree == "" || s.Observed == "" || s.Valid != (s.Violation == "") {
			w.t.Errorf("step %d: %+v", i, s)
		}
		changed := s.Tree != tree
		if changed != (len(s.Changed) > 0) || (changed && s.Tree != base.Index.Apply(s.Delta).TreeID()) {
			w.t.Errorf("step %d: tree %s, before %s, changed %v, delta %v", i, s.Tree, tree, s.Changed, s.Delta)
		}
		if (s.Probe != nil) != changed || (changed && s.Probe.ID != fmt.Sprintf("%s/%d", e.ID, i)) {
			w.t.Errorf("step %d: changed %v, probe %+v", i, changed, s.Probe)
		}
		if changed {
			if r := w.probe.got[probes]; r.ID != s.Probe.ID || r.Kind != milepost.ProbeStep || r.Tree != s.Tree || r.Step != i || r.Task != w.task || r.Episode != e.ID {
				w.t.Errorf("step %d: published %+v", i, r)
			}
			probes++
		}
		tree = s.Tree
	}
	if e.FinalTree != tree || e.FinalState == "" {
		w.t.Errorf("final tree %s after %s, state %q", e.FinalTree, tree, e.FinalState)
	}
	graded := e.Status == milepost.EpisodeCompleted || e.Status == milepost.EpisodeLimit
	if graded {
		if n := len(w.probe.got); n != probes+1 || w.probe.got[n-1].Kind != milepost.ProbeVerdict || w.probe.got[n-1].Tree != tree {
			w.t.Errorf("published %+v", w.probe.got)
		}
		if e.Outcome.Verdict == nil || e.Outcome.Verdict.ID != e.ID+"/verdict" {
			w.t.Errorf("verdict %+v", e.Outcome.Verdict)
		}
		if _, again, err := repo.ApplyPatch(context.Background(), base, e.Patch, w.blobs); err != nil || again != tree {
			w.t.Errorf("the patch makes tree %s, want %s (%v)", again, tree, err)
		}
	} else if e.Outcome.Verdict != nil || len(w.probe.got) != probes {
		w.t.Errorf("an episode that is not graded has verdict %+v, %d requests", e.Outcome.Verdict, len(w.probe.got))
	}
}

// prober keeps what is published.
type prober struct {
	mu  sync.Mutex
	got []milepost.ProbeRequest
	err error
}

func (p *prober) Publish(_ context.Context, r milepost.ProbeRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, r)
	return p.err
}

// clock stands still until it is moved.
type clock struct {
	mu    sync.Mutex
	now   time.Time
	fire  func()
	after time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fire, c.after = f, c.now.Add(d)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fire = nil
		return true
	}
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	f := c.fire
	if f == nil || c.now.Before(c.after) {
		f = func() {}
	} else {
		c.fire = nil
	}
	c.mu.Unlock()
	f()
}

// say is one turn of a script.
type say func(ctx context.Context) (rollout.Turn, error)

// script is a Model that says its turns in order and then submits. It gives four tokens a turn and keeps what it saw.
type script struct {
	turns   []say
	open    error
	noToken bool
	badStep bool // samples contradict the steps

	opening  rollout.Opening
	observed []rollout.ToolResult
	closed   int
	said     int
	sample   milepost.Sample
}

func (s *script) Open(_ context.Context, o rollout.Opening) (rollout.Conversation, error) {
	s.opening = o
	return s, s.open
}

func (s *script) Next(ctx context.Context) (rollout.Turn, error) {
	turn := rollout.Turn{Text: "", Calls: []rollout.ToolCall{{ID: "last", Name: "submit"}}, Finish: rollout.FinishStop}
	if s.said < len(s.turns) {
		var err error
		if turn, err = s.turns[s.said](ctx); err != nil {
			return rollout.Turn{}, err
		}
	}
	s.add(-1)
	turn.TokenStart, turn.Tokens = len(s.sample.Tokens), 4
	for range turn.Tokens {
		s.add(s.said)
	}
	turn.TokenEnd = len(s.sample.Tokens)
	s.said++
	return turn, nil
}

func (s *script) add(step int) {
	if s.badStep && step >= 0 {
		step++
	}
	s.sample.Tokens = append(s.sample.Tokens, 1)
	s.sample.Logprobs = append(s.sample.Logprobs, 0)
	s.sample.Versions = append(s.sample.Versions, 0)
	s.sample.Steps = append(s.sample.Steps, int32(step))
}

func (s *script) Observe(_ context.Context, r rollout.ToolResult) error {
	s.observed = append(s.observed, r)
	return nil
}

func (s *script) Samples() []milepost.Sample {
	if s.noToken {
		return nil
	}
	return []milepost.Sample{s.sample}
}

func (s *script) Endpoint() string { return "scripted" }
func (s *script) Close() error     { s.closed++; return nil }

// text is a turn of plain text.
func text(s string) say {
	return func(context.Context) (rollout.Turn, error) {
		return rollout.Turn{Text: s, Finish: rollout.FinishStop}, nil
	}
}

// call is a turn of one call in the Hermes format, which needs no schemas.
func call(tool, args string) say {
	f, err := toolcall.New(toolcall.Hermes, nil)
	if err != nil {
		panic(err)
	}
	out, err := f.Render(toolcall.Call{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		panic(err)
	}
	return text(out)
}

func bash(command string) say {
	args, _ := json.Marshal(map[string]string{"command": command})
	return call("execute_bash", string(args))
}

func edit(path, old, new string) say {
	args, _ := json.Marshal(map[string]string{"command": "replace", "path": path, "old": old, "new": new})
	return call("edit_file", string(args))
}

func create(path, content string) say {
	args, _ := json.Marshal(map[string]string{"command": "create", "path": path, "text": content})
	return call("edit_file", string(args))
}
