package rollout_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// Each action that breaks policy is rolled back exactly, named, and told; what stood before it stands after it, caches
// aside.
func TestViolationsAreRolledBack(t *testing.T) {
	// What the agent legally did before: every kind of change.
	before := []say{
		edit("a.py", "a - b", "a + b"),
		bash("rm crlf.txt && ln -sf pkg/b.py link.py && chmod -x pkg/run.sh && rm -r pkg/b.py && mkdir pkg/b.py && echo deep > pkg/b.py/x && printf 'n\\r\\n' > 'ü n.txt' && rm -f notthere && mkdir -p __pycache__ && touch __pycache__/x.pyc"),
	}
	w := localWorld(t)
	for _, c := range []struct {
		name      string
		forbid    bool
		act       say
		violation milepost.Violation
		told      string
	}{
		{"edit a protected file", false, create("tests/more.py", ""), milepost.ViolationProtected, "rolled back: tests/more.py is protected and must not be changed"},
		{"bash on a protected directory", false, bash("rm -r tests; echo x > tests; cat a.py"), milepost.ViolationProtected, "rolled back: tests is protected and must not be changed"},
		{"bash on a protected file", false, bash("cp a.py bin.dat"), milepost.ViolationProtected, "rolled back: bin.dat is protected and must not be changed"},
		{"commit", false, bash("git -c user.name=a -c user.email=a@b commit -qam work"), milepost.ViolationHead, "rolled back: HEAD and git's own data must not be moved"},
		{"stash", false, bash("git -c user.name=a -c user.email=a@b stash -q"), milepost.ViolationHead, "rolled back: HEAD and git's own data must not be moved"},
		{"remove git", false, bash("rm -rf .git"), milepost.ViolationHead, "rolled back: HEAD and git's own data must not be moved"},
		{"head before protected", false, bash("git checkout -q -b other; rm bin.dat"), milepost.ViolationHead, "rolled back: HEAD and git's own data must not be moved"},
		{"edit git by the tool", false, create(".git/hooks/pre-commit", "x"), milepost.ViolationHead, ".git/hooks/pre-commit is git's own data and may not be changed"},
		{"bash writes", true, bash("echo x >> a.py; rm 'é 日本.txt'"), milepost.ViolationBashWrite, "rolled back: bash must not change the repository (a.py, é 日本.txt); use edit_file"},
		{"bash links", true, bash("ln -s / root"), milepost.ViolationBashWrite, "rolled back: bash must not change the repository (root); use edit_file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t, w.probe.got, w.cfg.BashWrites = t, nil, rollout.BashWritesCapture
			turns := append([]say{}, before...)
			if c.forbid {
				w.cfg.BashWrites = rollout.BashWritesForbid
				turns = before[:1:1]
			}
			at := len(turns)
			look := bash("git status --porcelain=v1 --untracked-files=all | grep -v pycache; git rev-parse HEAD; git stash list; git branch; find . -name __pycache__ -prune -o -path ./.git -prune -o -type f -print | sort | xargs -d '\\n' cat; ls -l link.py pkg | tr -s ' ' | cut -d' ' -f1,9-")
			turns = append(turns, look, c.act, look, call("edit_file", `{"command":"undo"}`))
			e := w.run(context.Background(), &script{turns: turns})
			if e.Status != milepost.EpisodeCompleted {
				t.Fatalf("%s %s", e.Status, e.Error)
			}
			if len(before) == at && !e.Steps[1].Valid {
				t.Fatalf("before: %+v", e.Steps[1])
			}
			s := e.Steps[at+1]
			if s.Violation != c.violation || s.Observed != c.told || s.Valid || len(s.Exposures) > 0 || s.Tree != e.Steps[at].Tree || s.Probe != nil {
				t.Errorf("violation %q, told %q\n%+v", s.Violation, s.Observed, s)
			}
			if was, is := e.Steps[at].Observed, e.Steps[at+2].Observed; was != is {
				t.Errorf("before the action:\n%s\nafter the roll back:\n%s", was, is)
			}
			if u := e.Steps[at+3]; u.Observed != "ok" || !reflect.DeepEqual(u.Changed, []string{"a.py"}) {
				t.Errorf("undo of the edit before: %+v", u)
			}
		})
	}
}

func TestCachesNeverCount(t *testing.T) {
	w := localWorld(t)
	w.cfg.BashWrites = rollout.BashWritesForbid
	e := w.run(context.Background(), &script{turns: []say{
		bash("mkdir -p pkg/__pycache__ tests/__pycache__ .pytest_cache && touch pkg/__pycache__/b.pyc tests/__pycache__/t.pyc .pytest_cache/v && cat a.py | head -1"),
		bash("cp a.py z && mv z a.py"), // the same content
		bash("git status -s; git diff; git add -A"),
	}})
	for i, s := range e.Steps {
		if !s.Valid || s.Tree != w.task.BaseTree || s.Probe != nil {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if s := e.Steps[0]; s.Observed != "def add(a, b):" || len(s.Exposures) != 1 || s.Exposures[0] != (milepost.Exposure{Path: "a.py", Level: milepost.ExposureRead, Confidence: "high"}) {
		t.Errorf("%q %+v", s.Observed, s.Exposures)
	}
	if e.FinalState != rollout.StateKey(w.task.BaseTree, []string{"a.py"}) || e.Patch != "" {
		t.Errorf("state %s, patch %q", e.FinalState, e.Patch)
	}
}

func TestCapture(t *testing.T) {
	w := localWorld(t)
	e := w.run(context.Background(), &script{turns: []say{
		bash("sed -i 's/a - b/a + b/' a.py; chmod +x a.py"),
		bash("cat nope"),
		bash("head -c 4 /dev/urandom > big.bin; printf '\\0' >> big.bin; rm big.bin"),
		bash("git mv -k a.py b.py; ln -s b.py 'l n'"),
		bash("printf '\\0bin' > new.bin"),
		bash("sleep 30 & echo started"),
		bash("git checkout -q -- . ; git reset -q --hard; git clean -qfd"),
	}})
	if got := e.Steps[0].Changed; !reflect.DeepEqual(got, []string{"a.py"}) {
		t.Errorf("sed changed %v", got)
	}
	if s := e.Steps[1]; !s.Valid || !s.Executed || !strings.HasSuffix(s.Observed, "[exit 1]") {
		t.Errorf("failing command: %+v", s)
	}
	if s := e.Steps[2]; s.Probe != nil || len(s.Changed) > 0 {
		t.Errorf("came and went: %+v", s)
	}
	if got := e.Steps[3].Changed; !reflect.DeepEqual(got, []string{"a.py", "b.py", "l n"}) {
		t.Errorf("move changed %v", got)
	}
	if got := e.Steps[5].Observed; got != "started" {
		t.Errorf("background: %q", got)
	}
	if last := e.Steps[6]; last.Tree != w.task.BaseTree || last.Probe == nil || len(last.Delta) != 0 || !last.Valid {
		t.Errorf("back at the base: %+v", last)
	}
}

// Whatever edits are made, in the memory sandbox: every step's delta makes its tree, the patch makes the final tree (both
// in world.check), and the same script gives the same episode.
func TestRandomEdits(t *testing.T) {
	w := memoryWorld(t, nil)
	names := rapid.SampledFrom([]string{"a.py", "crlf.txt", "é 日本.txt", "new/ü.txt", "n.py", "tests/test.py", "bin.dat", "link.py"})
	rapid.Check(t, func(rt *rapid.T) {
		var turns []say
		for range rapid.IntRange(1, 8).Draw(rt, "turns") {
			name := names.Draw(rt, "name")
			switch rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				turns = append(turns, create(name, rapid.SampledFrom([]string{"", "x\n", "日本\r\n"}).Draw(rt, "text")))
			case 1:
				turns = append(turns, call("edit_file", `{"command":"delete","path":"`+name+`"}`))
			case 2:
				turns = append(turns, call("edit_file", `{"command":"undo"}`))
			case 3:
				turns = append(turns, call("edit_file", `{"command":"insert","path":"`+name+`","line":1,"text":"é\n"}`))
			case 4:
				turns = append(turns, edit(name, "a", "b\n"))
			}
		}
		w.probe.got = nil
		first := w.run(context.Background(), &script{turns: turns})
		w.probe.got = nil
		second := w.run(context.Background(), &script{turns: turns})
		if !reflect.DeepEqual(first, second) {
			rt.Fatalf("two runs differ:\n%+v\n%+v", first, second)
		}
		for _, s := range first.Steps {
			if s.Violation != "" && s.Violation != milepost.ViolationProtected {
				rt.Fatalf("%+v", s)
			}
		}
	})
}

// A short episode in the real sandbox: what the loop costs beside the model. Six turns, two of them edits, one of bash.
func BenchmarkEpisode(b *testing.B) {
	w := localWorld(b)
	turns := []say{call("search", `{"query":"add"}`), call("read_file", `{"path":"a.py"}`), edit("a.py", "a - b", "a + b"), bash("cat a.py"), edit("pkg/b.py", "1", "2")}
	for b.Loop() {
		w.probe.got = nil
		w.run(context.Background(), &script{turns: turns})
	}
}
