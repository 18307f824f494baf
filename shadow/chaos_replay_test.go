package shadow

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// Chaos: the recorded actions of testdata/chaos are replayed against a real server, real worker processes and the real
// credit engine, once undisturbed and once for each scenario of chaos_scenarios_test.go, which breaks something in the
// middle. Every scenario must end with the credits of the undisturbed run to 1e-9, and with no probe untrusted that was not.

const chaosTolerance = 1e-9

// recorded is one episode of the recording.
type recorded struct {
	id      string
	actions []action
}

// action is a tool call: what it wrote, nil for one that read.
type action struct {
	undo  bool
	files map[string]string // file -> state
}

// chaosFiles are the files of the repository, each with a test, and their states in the untouched tree.
var chaosFiles = map[string]string{"a": "bad", "b": "bad", "c": "bad", "d": "ok", "e": "ok"}

func readRecording(t *testing.T) []recorded {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "chaos", "actions.txt"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	var out []recorded
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		n++
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		a := action{}
		switch {
		case words[0] == "episode" && len(words) == 2:
			out = append(out, recorded{id: words[1]})
			continue
		case words[0] == "read" && len(words) == 1:
		case words[0] == "undo" && len(words) == 1:
			a.undo = true
		case words[0] == "edit" && len(words) >= 3 && len(words)%2 == 1:
			a.files = map[string]string{}
			for i := 1; i < len(words); i += 2 {
				if chaosFiles[words[i]] == "" {
					t.Fatalf("actions.txt:%d: no file %q", n, words[i])
				}
				a.files[words[i]] = words[i+1]
			}
		default:
			t.Fatalf("actions.txt:%d: %q is no action", n, lines.Text())
		}
		out[len(out)-1].actions = append(out[len(out)-1].actions, a)
	}
	return out
}

// fileText is what a file of the repository holds; mark makes the trees of copies of an episode differ.
func fileText(state, mark string) string {
	if state == "broken" {
		return "VALUE = (  # " + mark + "\n"
	}
	return fmt.Sprintf("VALUE = %q  # %s\n", state, mark)
}

// stage is what all scenarios share: the task, its repository, the recorded steps ready to be published.
type stage struct {
	task     *milepost.Task
	store    *repo.Store
	blobs    *repo.Blobs
	episodes []*milepost.Episode // steps with trees and deltas, probes pending
}

// newStage builds the repository and turns the recording, copies times, into steps.
func newStage(t *testing.T, copies int) *stage {
	t.Helper()
	s := &stage{task: chaosTask(t, t.TempDir()), store: newStore(t)}
	var err error
	s.blobs, err = repo.NewBlobs(t.TempDir())
	must(t, err)
	base, err := s.store.Base(t.Context(), s.task)
	must(t, err)
	for k := range copies {
		for _, rec := range readRecording(t) {
			s.episodes = append(s.episodes, s.episode(t, base, rec, k))
		}
	}
	return s
}

func (s *stage) episode(t *testing.T, base *repo.Base, rec recorded, k int) *milepost.Episode {
	t.Helper()
	ep := &milepost.Episode{ID: fmt.Sprintf("%s-%d", rec.id, k), Group: fmt.Sprint("g", k), Task: s.task.ID, Attempt: len(s.episodes),
		Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit, FinalTree: s.task.BaseTree}
	state := map[string]string{}
	for i, a := range rec.actions {
		step := milepost.Step{Index: i, State: fmt.Sprint(i), Valid: true, Executed: true}
		if a.undo {
			clear(state)
		}
		for f, st := range a.files {
			state[f] = st
		}
		if a.undo || a.files != nil {
			var changes []env.Change
			for f, st := range state {
				c := env.Change{Path: f + ".py", Mode: 0o100644, Data: []byte(fileText(st, fmt.Sprint("copy ", k)))}
				if st == "gone" {
					c = env.Change{Path: c.Path, Deleted: true}
				}
				changes = append(changes, c)
			}
			delta, tree, err := repo.Delta(base, changes, s.blobs)
			must(t, err)
			step.Delta, ep.FinalDelta, ep.FinalTree = delta, delta, tree
			step.Probe = &milepost.Probe{ID: fmt.Sprintf("%s/%d", ep.ID, i)}
		}
		step.Tree = ep.FinalTree
		ep.Steps = append(ep.Steps, step)
	}
	ep.FinalState = "end"
	return ep
}

// chaosTask makes a repository with one module and one test module for each file.
func chaosTask(t *testing.T, dir string) *milepost.Task {
	t.Helper()
	task := &milepost.Task{ID: "chaos", Kind: milepost.BugRepair, Repo: dir, Image: "local:test",
		Test: milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "-v"}, Format: "unittest", Resident: "unittest", Timeout: 30 * time.Second}}
	for f, state := range chaosFiles {
		must(t, os.WriteFile(filepath.Join(dir, f+".py"), []byte(fileText(state, "base")), 0o644))
		test := fmt.Sprintf("import unittest\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        import %s\n        self.assertEqual(%s.VALUE, \"ok\")\n", f, f)
		must(t, os.WriteFile(filepath.Join(dir, "test_"+f+".py"), []byte(test), 0o644))
	}
	for _, f := range []string{"a", "b", "c", "d", "e"} {
		task.Tests = append(task.Tests, "test_"+f+".T.test_it")
	}
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "base")
	task.BaseCommit, task.BaseTree = git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")
	return task
}

// contentRunner runs the tests of chaosTask without an interpreter: it proves and writes the tree like the production
// runner and reads off the files what their tests would say.
type contentRunner struct {
	store *repo.Store
	blobs *repo.Blobs
	dir   string
}

func (c *contentRunner) Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (Outcome, error) {
	base, err := c.store.Base(ctx, task)
	if err != nil {
		return Outcome{}, err
	}
	if err := base.Prove(delta, tree); err != nil {
		return Outcome{Status: milepost.ProbeTreeWrong, Reason: err.Error()}, nil
	}
	dir, err := os.MkdirTemp(c.dir, "tree")
	if err != nil {
		return Outcome{}, milepost.Wrap("test", milepost.KindUnavailable, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	dir = filepath.Join(dir, "t")
	if err := repo.Materialise(ctx, base, delta, c.blobs, dir); err != nil {
		return Outcome{}, err
	}
	out := Outcome{Status: milepost.ProbeCompleted, Tree: tree}
	for _, test := range task.Tests {
		text, err := os.ReadFile(filepath.Join(dir, test[len("test_"):][:1]+".py"))
		state := milepost.Errored
		switch {
		case err == nil && strings.HasPrefix(string(text), `VALUE = "ok"`):
			state = milepost.Passed
		case err == nil && strings.HasPrefix(string(text), `VALUE = "`):
			state = milepost.Failed
		}
		out.Report = append(out.Report, state)
	}
	return out, nil
}

// ending is what a replay came to.
type ending struct {
	credits   []milepost.EpisodeCredit
	untrusted int // probes and verdicts, late ones not counted
	late      int
	probes    int
	stats     Stats
}

// replay publishes the steps at the pace of agents, with disturb beside it, waits at the barrier and assigns credit. Agents
// do the second half of their steps once half is closed.
func (s *stage) replay(t *testing.T, p *Prober, half <-chan struct{}, disturb func(ctx context.Context)) ending {
	t.Helper()
	eps := make([]*milepost.Episode, len(s.episodes))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var agents, trouble sync.WaitGroup
	trouble.Go(func() { disturb(ctx) })
	for i, rec := range s.episodes {
		ep := *rec
		ep.Steps = append([]milepost.Step(nil), rec.Steps...)
		eps[i] = &ep
		agents.Go(func() { s.agent(t, p, &ep, half) })
	}
	var baseline *milepost.Probe
	agents.Go(func() {
		var err error
		if baseline, err = p.Baseline(ctx, s.task); err != nil {
			t.Error(err)
		}
	})
	agents.Wait()
	if os.Getenv(chaosFullEnv) != "" {
		settle(p)
	}
	must(t, p.Fill(ctx, eps, chaosBarrier))
	trouble.Wait()
	end := ending{stats: p.Stats()}
	inputs := make([]credit.Input, len(eps))
	for i, ep := range eps {
		for j := range ep.Steps {
			end.add(t, ep.Steps[j].Probe)
		}
		v := ep.Outcome.Verdict
		end.add(t, v)
		ep.Outcome.Graded, ep.Outcome.Resolved = true, v.Trusted && v.Report.AllPassed()
		if ep.Outcome.Resolved {
			ep.Outcome.Reward = 1
		}
		inputs[i] = credit.Input{Episode: ep, Task: s.task, Baseline: baseline}
	}
	engine, err := credit.New(credit.Default())
	must(t, err)
	res, err := engine.Assign(inputs)
	must(t, err)
	if len(res.Warnings) > 0 {
		t.Errorf("credit warns: %v", res.Warnings)
	}
	end.credits = res.Episodes
	return end
}

// settle returns when every probe has its result, or none came for as long as the barrier waits: then it never comes. How
// long a replay takes as a whole says how fast the machine is, and nothing of what was lost.
func settle(p *Prober) {
	state := func() (final, open int) { s := p.Stats(); return s.Trusted + s.Untrusted, s.InFlight + s.Backlog }
	last, open := state()
	for since := time.Now(); open > 0 && time.Since(since) < chaosBarrier; time.Sleep(50 * time.Millisecond) {
		var final int
		if final, open = state(); final != last {
			last, since = final, time.Now()
		}
	}
}

func (s *stage) agent(t *testing.T, p *Prober, ep *milepost.Episode, half <-chan struct{}) {
	for i := range ep.Steps {
		time.Sleep(chaosTurn)
		if i >= len(ep.Steps)/2 {
			<-half
		}
		st := &ep.Steps[i]
		if st.Probe == nil {
			continue
		}
		err := p.Publish(t.Context(), milepost.ProbeRequest{ID: st.Probe.ID, Kind: milepost.ProbeStep, Task: s.task, Episode: ep.ID, Step: st.Index, Tree: st.Tree, Delta: st.Delta})
		if err != nil {
			t.Error(err)
		}
	}
	if err := p.Publish(t.Context(), milepost.ProbeRequest{ID: ep.ID + "/verdict", Kind: milepost.ProbeVerdict, Task: s.task, Episode: ep.ID,
		Step: len(ep.Steps), Tree: ep.FinalTree, Delta: ep.FinalDelta}); err != nil {
		t.Error(err)
	}
}

func (e *ending) add(t *testing.T, p *milepost.Probe) {
	switch {
	case p == nil:
		return
	case p.Status == milepost.ProbeLate:
		e.late++
	case !p.Trusted:
		e.untrusted++
		t.Logf("untrusted: %+v", p)
	}
	e.probes++
}

// expectSame holds an ending to that of the undisturbed run.
func (e *ending) expectSame(t *testing.T, want ending) {
	t.Helper()
	if e.untrusted > want.untrusted {
		t.Errorf("%d of %d probes are untrusted, %d undisturbed", e.untrusted, e.probes, want.untrusted)
	}
	if len(e.credits) != len(want.credits) {
		t.Fatalf("%d episodes, want %d", len(e.credits), len(want.credits))
	}
	worst := 0.0
	for i, c := range e.credits {
		if c.ID != want.credits[i].ID || len(c.Steps) != len(want.credits[i].Steps) {
			t.Fatalf("episode %s with %d steps, want %s with %d", c.ID, len(c.Steps), want.credits[i].ID, len(want.credits[i].Steps))
		}
		for j, got := range c.Steps {
			w := want.credits[i].Steps[j]
			for name, pair := range map[string][2]float64{"phi_ver": {got.PhiVer, w.PhiVer}, "r": {got.R, w.R}, "b": {got.B, w.B}, "p": {got.P, w.P},
				"a_out": {got.AOut, w.AOut}, "advantage": {got.Advantage, w.Advantage}} {
				d := math.Abs(pair[0] - pair[1])
				if worst = max(worst, d); !(d <= chaosTolerance) {
					t.Errorf("%s step %d: %s is %v, undisturbed %v", c.ID, j, name, pair[0], pair[1])
				}
			}
		}
	}
	t.Logf("%d probes, %d untrusted, %d late; credits differ by at most %g; %s", e.probes, e.untrusted, e.late, worst, e.stats.troubles())
}

// troubles are the counters that are not 0 in a disturbed run.
func (s Stats) troubles() string {
	var out []string
	for _, c := range []struct {
		name string
		n    int
	}{{"redelivered", s.Redelivered}, {"fenced", s.Fenced}, {"duplicates", s.Duplicates}, {"corrupt", s.Corrupt}, {"lost messages", s.LostMessages},
		{"retries", s.Retries}, {"publish errors", s.PublishErrors}, {"after the barrier", s.AfterBarrier}} {
		if c.n > 0 {
			out = append(out, fmt.Sprint(c.name, " ", c.n))
		}
	}
	return strings.Join(out, ", ")
}
