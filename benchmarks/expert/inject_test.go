package expert_test

import (
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

const (
	faultyFile = "import a\n\n\ndef take(n, seq):\n    if n >= 1:\n        return seq[:n + 1]\n    return None\n\n\ndef rest(seq):\n    return seq[1:]\n"
	rightFile  = "import a\n\n\ndef take(n, seq):\n    if n < 0:\n        raise ValueError(n)\n    if n >= 1:\n        return seq[:n]\n    return None\n\n\ndef rest(seq):\n    return seq[1:]\n"
)

func injectTask() *milepost.Task {
	return &milepost.Task{ID: "t", ReferencePatch: benchmarks.Diff("p/take.py", faultyFile, rightFile),
		Statement: "p misbehaves: 1 test fails. For example:\n- tests/test_p.py::test_take: assert [1, 2] == [1]"}
}

func TestInjectExpertReplaysTheReference(t *testing.T) {
	m, err := expert.New(expert.Config{Right: 1, Search: 1, Around: 3})
	if err != nil {
		t.Fatal(err)
	}
	for seed := range int64(10) {
		w := &world{files: map[string]string{"p/take.py": faultyFile}}
		play(t, m, w, toolcall.Hermes, injectTask().Statement, seed, injectTask())
		if w.files["p/take.py"] != rightFile {
			t.Fatalf("file after the expert:\n%s", w.files["p/take.py"])
		}
		if got := strings.Join(w.calls, ", "); got != "search, read_file, edit_file replace, search, read_file, edit_file replace, submit" {
			t.Errorf("calls: %s", got)
		}
	}
}

func TestInjectExpertIsDiverselyWrong(t *testing.T) {
	m, err := expert.New(expert.Config{Right: .5, Around: 3})
	if err != nil {
		t.Fatal(err)
	}
	right, ends := 0, map[string]bool{}
	for seed := range int64(400) {
		w := &world{files: map[string]string{"p/take.py": faultyFile}}
		play(t, m, w, toolcall.Hermes, injectTask().Statement, seed, injectTask())
		if w.files["p/take.py"] == faultyFile {
			t.Fatal("a wrong edit left the file as it was")
		}
		if w.files["p/take.py"] == rightFile {
			right++
		}
		ends[w.files["p/take.py"]] = true
	}
	if right < 70 || right > 130 { // two edits, each right half of the time
		t.Errorf("both right %d times of 400, want about 100", right)
	}
	if len(ends) < 6 {
		t.Errorf("only %d different ends", len(ends))
	}
}
