package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/mattn/go-runewidth"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/explain"
)

const golden = "../../credit/testdata/golden/"

func TestCreditExplainCase(t *testing.T) {
	code, text, stderr := milepostRun(t, "credit", "explain", "--case", golden+"untrusted_probes.json", "a-1", "--width", "100")
	if code != exitDone || stderr != "" {
		t.Fatalf("code %d, %s", code, stderr)
	}
	for _, want := range []string{"episode   a-1\n", "task      a, bug_repair\n", "(as the case gives it)", "not trusted: ", "φver", "A_out", "group     kept by outcome: "} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	for l := range strings.Lines(text) {
		if runewidth.StringWidth(l) > 100 {
			t.Errorf("wider than 100: %s", l)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("colours although the output is no terminal")
	}
	if code, _, stderr = milepostRun(t, "credit", "explain", "--case", golden+"infra_error_excluded.json", "a-"); code != exitUsage || !strings.Contains(stderr, "begins or ends") {
		t.Errorf("several: code %d, %s", code, stderr)
	}
}

// TestCreditExplainEveryGoldenCase: the first and the last episode have a table and the numbers of `recompute`.
func TestCreditExplainEveryGoldenCase(t *testing.T) {
	files, err := filepath.Glob(golden + "*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		out, _, err := runCredit(nil, file)
		if err != nil {
			t.Fatal(err)
		}
		var all []milepost.EpisodeCredit
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatal(err)
		}
		for _, want := range []milepost.EpisodeCredit{all[0], all[len(all)-1]} {
			code, out, stderr := milepostRun(t, "credit", "explain", "--json", "--case", file, want.ID)
			var got explain.Episode
			if err := json.Unmarshal([]byte(out), &got); code != exitDone || err != nil {
				t.Fatalf("%s %s: code %d, %s, %v", file, want.ID, code, stderr, err)
			}
			if got.ID != want.ID || got.Excluded != want.Excluded || len(got.Steps) != len(want.Steps) {
				t.Fatalf("%s %s: %+v", file, want.ID, got)
			}
			for k, s := range want.Steps {
				if got.Steps[k].Credit != s {
					t.Errorf("%s %s step %d: %+v, want %+v", file, want.ID, k, got.Steps[k].Credit, s)
				}
			}
			if code, out, stderr = milepostRun(t, "credit", "explain", "--case", file, want.ID); code != exitDone || !strings.Contains(out, "episode   "+want.ID) {
				t.Fatalf("%s %s: code %d, %s", file, want.ID, code, stderr)
			}
		}
	}
}

// explainedRun is a run folder of one finished batch, one evaluation, and one batch that grows and is torn.
func explainedRun(t *testing.T) *orchestrator.Folder {
	t.Helper()
	f, err := orchestrator.OpenFolder(t.TempDir(), orchestrator.Header{Name: "small", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	task := &milepost.Task{ID: "fix", Kind: milepost.BugRepair, Tests: []string{"test_a", "test_b"}}
	probe := func(states ...milepost.TestState) *milepost.Probe {
		return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: states}
	}
	baseline := probe(milepost.Failed, milepost.Passed)
	episode := func(id string, last milepost.TestState) *milepost.Episode {
		v := probe(last, milepost.Passed)
		o := milepost.Outcome{Graded: true, Resolved: v.Report.AllPassed(), Verdict: v}
		if o.Resolved {
			o.Reward = 1
		}
		return &milepost.Episode{ID: id, Group: id[:max(0, strings.LastIndex(id, "/"))], Task: "fix", Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit, Outcome: o,
			Steps: []milepost.Step{{Valid: true, Executed: true, Action: milepost.Action{Tool: "edit_file", Text: "x"}, Probe: v}}}
	}
	inputs := []credit.Input{{Episode: episode("u0001/g00/a00", milepost.Passed)}, {Episode: episode("u0001/g00/a01", milepost.Failed)}}
	for i := range inputs {
		inputs[i].Task, inputs[i].Baseline = task, baseline
	}
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	r, err := engine.Assign(inputs)
	if err != nil {
		t.Fatal(err)
	}
	var records []orchestrator.EpisodeRecord
	for i, in := range inputs {
		records = append(records, orchestrator.EpisodeRecord{Episode: in.Episode, Purpose: orchestrator.PurposeTrain, Credit: &r.Episodes[i], Baseline: baseline})
	}
	grows := []orchestrator.EpisodeRecord{{Episode: episode("u0002/g00/a05", milepost.Failed)}, {Episode: episode("u0002/g00/a06", milepost.Failed)}}
	for batch, records := range map[string][]orchestrator.EpisodeRecord{
		"u0001": records, "u0002": grows[:1], "x": grows[1:],
		"heldout-before": {{Episode: episode("heldout-before/fix/0", milepost.Failed), Purpose: "heldout-before"}},
	} {
		if err := f.WriteEpisodes(batch, records); err != nil {
			t.Fatal(err)
		}
	}
	whole, errA := os.ReadFile(f.Path("episodes", "u0002.jsonl.zst"))
	torn, errB := os.ReadFile(f.Path("episodes", "x.jsonl.zst"))
	err = errors.Join(errA, errB, os.Remove(f.Path("episodes", "u0002.jsonl.zst")), os.Remove(f.Path("episodes", "x.jsonl.zst")),
		os.WriteFile(f.Path("episodes", "u0002.jsonl.zst.part"), append(whole, torn[:len(torn)/2]...), 0o644), writeTasks(f, task),
		f.SaveConfig([]byte("credit:\n  estimator: grpo\nschedule:\n  keep_group: advantage\n")))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func writeTasks(f *orchestrator.Folder, task *milepost.Task) error {
	b, err := json.Marshal(task)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		return err
	}
	return os.WriteFile(f.Path("tasks.jsonl.zst"), z.EncodeAll(b, nil), 0o644)
}

func TestCreditExplainRun(t *testing.T) {
	f := explainedRun(t)
	code, text, stderr := milepostRun(t, "credit", "explain", "--run", f.Dir, "u0001/g00/a00")
	if code != exitDone || stderr != "" {
		t.Fatalf("code %d, %s", code, stderr)
	}
	for _, want := range []string{"episode   u0001/g00/a00 (u0001)", "reward    1 = resolved 1", "baseline  trusted: 1 test fail before (F2P), 1 pass (P2P)", "fixed     1: test_a", "kept by advantage: the largest |A| of the group is "} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "remarks") {
		t.Errorf("the credit of the run is remarked upon:\n%s", text)
	}
	before, err := os.ReadDir(f.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]struct {
		code  int
		words string
	}{
		"nothing":              {exitFailed, `there is no episode "nothing"; there are `},
		"u0001/":               {exitUsage, `"u0001/" begins or ends 2 episode ids: u0001/g00/a00, u0001/g00/a01`},
		"a05":                  {exitFailed, "the batch of episode u0002/g00/a05 (u0002) is not finalised yet"},
		"a06":                  {exitFailed, "there is no episode"},
		"heldout-before/fix/0": {exitUsage, "an evaluation earns no credit; allowed: a training episode"},
	} {
		if code, _, stderr := milepostRun(t, "credit", "explain", "--run", f.Dir, id); code != want.code || !strings.Contains(stderr, want.words) {
			t.Errorf("%s: code %d, %s", id, code, stderr)
		}
	}
	if after, err := os.ReadDir(f.Dir); err != nil || len(after) != len(before) {
		t.Errorf("%d entries in the run folder before, %d after (error %v)", len(before), len(after), err)
	}
}

func TestCreditExplainUsage(t *testing.T) {
	for words, args := range map[string][]string{
		"give one of --run RUN_DIR and --case CASE.json": {"a-0"},
		"give one of --run":                    {"--run", "x", "--case", "y", "a-0"},
		"0 arguments; allowed: one episode id": {"--run", "x"},
		"--width is 20; allowed: 72 or more":   {"--run", "x", "--width", "20", "a"},
	} {
		if code, out, stderr := milepostRun(t, append([]string{"credit", "explain"}, args...)...); code != exitUsage || out != "" || !strings.Contains(stderr, words) {
			t.Errorf("%v: code %d, %q, %s", args, code, out, stderr)
		}
	}
	if code, _, stderr := milepostRun(t, "credit", "explain", "--case", filepath.Join(t.TempDir(), "none.json"), "a"); code != exitFailed || !strings.Contains(stderr, "none.json") {
		t.Errorf("no file: code %d, %s", code, stderr)
	}
	if code, _, stderr := milepostRun(t, "credit", "explain", "--run", t.TempDir(), "a"); code != exitFailed || !strings.Contains(stderr, "has no episode yet") {
		t.Errorf("no run: code %d, %s", code, stderr)
	}
}
