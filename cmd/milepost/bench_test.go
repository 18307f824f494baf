package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/shadow"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestBenchOrder(t *testing.T) {
	v := variantsOf([]int{1, 2, 8})
	names := func(list []benchVariant) (out []string) {
		for _, x := range list {
			out = append(out, x.Name)
		}
		return out
	}
	full := []string{variantOff, "shadow, 8 workers", variantAgain, variantSync, "shadow, 1 worker", "shadow, 2 workers"}
	if got := names(orderOf(v, 0, true)); !slices.Equal(got, full) {
		t.Errorf("round 0: %v", got)
	}
	back := slices.Clone(full[:4])
	slices.Reverse(back)
	if got := names(orderOf(v, 1, false)); !slices.Equal(got, back) {
		t.Errorf("round 1: %v", got)
	}
	if got := names(orderOf(variantsOf([]int{4}), 0, true)); !slices.Equal(got, []string{variantOff, "shadow, 4 workers", variantAgain, variantSync}) {
		t.Errorf("one number of workers: %v", got)
	}
	for i, want := range []int{8, 8, 8, 1, 2, 8} {
		if v[i].Workers != want {
			t.Errorf("%s has %d workers, not %d", v[i].Name, v[i].Workers, want)
		}
	}
}

// benchTimes makes a round of barrier times; episodes end one second earlier.
func benchTimes(off, again, sync, one, two float64) benchRound {
	r := benchRound{}
	for name, s := range map[string]float64{variantOff: off, variantAgain: again, variantSync: sync, "shadow, 1 worker": one, "shadow, 2 workers": two} {
		if s > 0 {
			r[name] = benchBatch{Episodes: s - 1, Barrier: s}
		}
	}
	return r
}

func TestBenchRatios(t *testing.T) {
	rounds := []benchRound{benchTimes(10, 10.2, 20.1, 25.25, 11.11), benchTimes(20, 20.2, 40.1, 0, 20.1), benchTimes(5, 5, 10, 0, 5.5)}
	s := summariseBench(testsReal, variantsOf([]int{1, 2}), rounds)
	rows := map[string]benchRow{}
	for _, r := range s.Rows {
		rows[r.Name] = r
	}
	two := rows["shadow, 2 workers"]
	// Within the rounds 11.11/10.1, 20.1/20.1, 5.5/5, and of what synchronous probing adds (10, 20, 5) all but 1.01, 0, .5.
	if two.Batches != 3 || !near(two.BarrierRatio.Median, 1.1) || !near(two.BarrierRatio.Min, 1) || !near(two.BarrierRatio.Max, 1.1) {
		t.Errorf("two workers: %+v", two)
	}
	if two.Hidden == nil || !near(two.Hidden.Median, .9) || !near(two.Hidden.Min, 1-1.01/10) || !near(two.Hidden.Max, 1) {
		t.Errorf("hidden by two workers: %+v", two.Hidden)
	}
	if one := rows["shadow, 1 worker"]; one.Batches != 1 || !near(one.BarrierRatio.Median, 2.5) || !near(one.EpisodesRatio.Median, 24.25/9.1) || !near(one.Hidden.Median, 1-15.15/10) {
		t.Errorf("one worker, measured in one round: %+v, hidden %+v", one, one.Hidden)
	}
	if again := rows[variantAgain]; !near(again.BarrierRatio.Median, 1.01) || again.Hidden != nil || again.HiddenShare != nil {
		t.Errorf("no probing again is to be compared with no probing: %+v", again)
	}
	if off := rows[variantOff]; off.BarrierRatio != (spread{1, 1, 1}) || off.Barrier != (spread{10, 5, 20}) {
		t.Errorf("no probing: %+v", off)
	}
}

// What synchronous probing adds may be too little to tell what is hidden of it.
func TestBenchNoise(t *testing.T) {
	for _, c := range []struct {
		rounds []benchRound
		want   bool
	}{
		{[]benchRound{benchTimes(10, 10.3, 11.1, 0, 10)}, true},
		{[]benchRound{benchTimes(10, 10.4, 11.1, 0, 10)}, false},
		{[]benchRound{benchTimes(10, 10, 9, 0, 10)}, false},
		{[]benchRound{benchTimes(10, 10, 10, 0, 10)}, false},
		{[]benchRound{benchTimes(10, 12, 15, 0, 10), benchTimes(10, 10, 15, 0, 10), benchTimes(10, 10, 15, 0, 10)}, true},
	} {
		if got := tellable(c.rounds); got != c.want {
			t.Errorf("%+v: %v", c.rounds, got)
		}
		row, _ := rowOf(variantsOf([]int{2})[3], c.rounds)
		if (row.Hidden != nil) != c.want {
			t.Errorf("%+v: hidden %v", c.rounds, row.Hidden)
		}
	}
	if got := spreadOf([]float64{4, 1, 2, 3}); got != (spread{2.5, 1, 4}) {
		t.Errorf("an even number: %+v", got)
	}
}

func TestBenchCounts(t *testing.T) {
	batch := benchBatch{Episodes: 4, Barrier: 5, ProberBytes: 8000, WorkerBytes: 16000, Stats: shadow.Stats{Trusted: 15, Untrusted: 1, Cached: 6, Sent: 8, Late: 1,
		QueueTime: 500 * time.Millisecond, RunTime: 4 * time.Second, StepTime: 8 * time.Second, VerdictTime: 2 * time.Second, OverlapTime: 6 * time.Second, BarrierWait: time.Second}}
	r := benchTimes(5, 5, 10, 0, 0)
	r["shadow, 2 workers"] = batch
	row, ok := rowOf(variantsOf([]int{2})[3], []benchRound{r, r})
	if !ok || *row.HiddenShare != .9 || *row.OverlapShare != .75 || row.Probes != 16 || row.Runs != 8 || !near(row.RunsPerS, 1.6) || !near(row.QueueMS, 50) ||
		!near(row.RunMS, 500) || row.TrustedShare != 15./16 || row.Late != 2 || row.WireProber != 1000 || row.WireWorker != 2000 {
		t.Errorf("%+v", row)
	}
	if _, ok := rowOf(benchVariant{Name: "shadow, 4 workers"}, []benchRound{r}); ok {
		t.Error("a row for what no round ran")
	}
	var out bytes.Buffer
	report := benchReport{Options: defaultBench(), Hidden: []benchSection{summariseBench(testsWaiting, variantsOf([]int{2}), []benchRound{r})},
		Micro: []goBenchmark{{Package: "credit", Name: "Assign", Values: map[string]float64{"ns/op": 1234567, "B/op": 10}}}}
	if err := printBench(&out, report); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one that sleeps 400ms", "shadow, 2 workers", "0.938", "1.6", "1.0 kB", "1.23 ms", "10 B/op"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestGoBenchmarks(t *testing.T) {
	got, err := parseGoBenchmarks([]byte("goos: linux\npkg: github.com/milepost-rl/milepost/credit\ncpu: x\n" +
		"BenchmarkAssign/episodes=100-2 \t 10\t 200 ns/op\t 5.5 steps/s\t 7 B/op\t 1 allocs/op\n" +
		"BenchmarkAssign/episodes=100-2 \t 10\t 100 ns/op\t 5.5 steps/s\t 7 B/op\t 1 allocs/op\n" +
		"BenchmarkAssign/episodes=100-2 \t 10\t 900 ns/op\t 5.5 steps/s\t 7 B/op\t 1 allocs/op\n" +
		"PASS\nok  \tgithub.com/milepost-rl/milepost/credit\t1s\npkg: github.com/milepost-rl/milepost/env/local\nBenchmarkExec-2  3  1e6 ns/op\nPASS\n"))
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if a := got[0]; a.Package != "credit" || a.Name != "Assign/episodes=100" || a.Runs != 3 || a.Values["ns/op"] != 200 || a.Values["steps/s"] != 5.5 || len(a.Values) != 4 {
		t.Errorf("%+v", a)
	}
	if e := got[1]; e.Package != "env/local" || e.Name != "Exec" || e.Values["ns/op"] != 1e6 {
		t.Errorf("%+v", e)
	}
	for _, bad := range []string{"", "PASS\n", "BenchmarkX-2 1 abc ns/op\n"} {
		if _, err := parseGoBenchmarks([]byte(bad)); milepost.KindOf(err) != milepost.KindCorrupt {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for ns, want := range map[float64]string{12.34: "12.3 ns", 1500: "1.5 µs", 2.5e6: "2.5 ms", 3e9: "3 s"} {
		if got := siTime(ns); got != want {
			t.Errorf("%g: %s, not %s", ns, got, want)
		}
	}
}

func TestBenchWrongUse(t *testing.T) {
	for flag, says := range map[string]string{"--tests=quick": "waiting", "--workers=2,1": "grow", "--workers=0": "within 1", "--turn=0s": "positive", "--wait=0": "above 0",
		"--tasks=0": "1 or more", "--rounds=0": "--rounds", "--sweep-rounds=9": "--sweep-rounds", "--slots=x": "slots",
		"--loop=-1": "--loop", "--loop-turns=3": "--loop-turns", "--loop-latency=0s": "--loop-latency"} {
		var out bytes.Buffer
		root := newRootCommand()
		root.SetErr(&out)
		if code := run(t.Context(), root, []string{"bench", flag}); code != exitUsage || !strings.Contains(out.String(), says) {
			t.Errorf("%s: exit code %d, %s", flag, code, out.String())
		}
	}
}

func TestWaitingTask(t *testing.T) {
	base := unittestTask(t)
	dir := t.TempDir()
	got, err := waitingTask(base, dir, 250*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(got.Repo, "tests", "test_waiting.py"))
	if err != nil || !strings.Contains(string(text), "time.sleep(0.25)") {
		t.Errorf("%s, %v", text, err)
	}
	if want := []string{"test_m.T.test_one", "test_waiting.Waiting.test_waiting"}; !slices.Equal(got.Tests, want) || len(base.Tests) != 1 || got.ID == base.ID || got.BaseTree == base.BaseTree {
		t.Errorf("%+v", got)
	}
	m, err := os.ReadFile(filepath.Join(base.Repo, "test_m.py"))
	if err != nil {
		t.Fatal(err)
	}
	if tree, err := benchmarks.TreeID([]benchmarks.File{{Path: "test_m.py", Data: m}, {Path: "tests/test_waiting.py", Data: text}}); err != nil || tree != got.BaseTree {
		t.Errorf("the tree is %s, not %s (%v)", got.BaseTree, tree, err)
	}
}

// instant is a model whose turns take no time.
type instant struct{ rollout.Conversation }

func (i instant) Open(context.Context, rollout.Opening) (rollout.Conversation, error) { return i, nil }
func (instant) Next(context.Context) (rollout.Turn, error)                            { return rollout.Turn{Text: "turn"}, nil }

func TestSlowModel(t *testing.T) {
	c, err := slowModel{instant{}, 40 * time.Millisecond}.Open(t.Context(), rollout.Opening{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	turn, err := c.Next(t.Context())
	if took := time.Since(began); err != nil || turn.Text != "turn" || took < 30*time.Millisecond {
		t.Errorf("%+v, %v after %s", turn, err, took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err = slowModel{instant{}, time.Hour}.Open(t.Context(), rollout.Opening{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(ctx); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSameEpisodes(t *testing.T) {
	episode := func(tree string, state milepost.TestState, trusted bool) []*milepost.Episode {
		return []*milepost.Episode{{ID: "e", Status: milepost.EpisodeCompleted, Steps: []milepost.Step{{Tree: tree}},
			Outcome: milepost.Outcome{Verdict: &milepost.Probe{Trusted: trusted, Report: milepost.TestReport{state}}}}}
	}
	b := &bench{seen: map[string]episodePrint{}}
	for _, same := range [][]*milepost.Episode{episode("a", milepost.Failed, false), episode("a", milepost.Passed, true), episode("a", milepost.Passed, true), episode("a", milepost.Failed, false)} {
		if err := b.sameEpisodes(same); err != nil {
			t.Error(err)
		}
	}
	broken := episode("a", milepost.Passed, true)
	broken[0].Status = milepost.EpisodeInfra
	for _, other := range [][]*milepost.Episode{episode("b", milepost.Passed, true), episode("a", milepost.Failed, true), broken} {
		if err := b.sameEpisodes(other); err == nil || !strings.Contains(err.Error(), "episode e") {
			t.Errorf("%v", err)
		}
	}
}

// The whole bench in small: all variants on two episodes, with a sandbox, NATS and tests.
func TestBenchRuns(t *testing.T) {
	if _, err := local.New(local.Config{Root: t.TempDir()}); err != nil {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&errs)
	args := strings.Fields("bench --json --tasks 1 --attempts 2 --rounds 1 --workers 1,2 --turn 10ms --wait 5 --tests waiting --loop 0")
	if code := run(t.Context(), root, args); code != exitDone {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	var r benchReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Hidden) != 1 || len(r.Hidden[0].Rows) != 5 {
		t.Fatalf("%v: %s", err, out.String())
	}
	for _, row := range r.Hidden[0].Rows {
		if row.TrustedShare != 1 || row.Late != 0 || row.Runs < 1 || row.RunMS < 50 || row.WireProber < 100 || row.Barrier.Median < row.Episodes.Median {
			t.Errorf("%+v", row)
		}
	}
}
