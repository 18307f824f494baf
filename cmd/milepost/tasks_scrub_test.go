package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/env/repo"
)

func TestTasksScrub(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "trunk")
	git("commit", "-q", "--allow-empty", "-m", "base")
	base := git("rev-parse", "HEAD")
	git("commit", "-q", "--allow-empty", "-m", "the fix")
	fix := git("rev-parse", "HEAD")
	git("checkout", "-q", base)

	code, out, errOut := tasksCommand(t, "scrub", "--check", dir)
	if code != exitFailed || !strings.Contains(out, "object   commit "+fix+": ") || !strings.Contains(out, `"the fix"`) || !strings.Contains(errOut, fix) {
		t.Errorf("check: %d\n%s\n%s", code, out, errOut)
	}
	code, out, _ = tasksCommand(t, "scrub", "--check", "--json", dir)
	var p repo.Proof
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != exitFailed || len(p.Findings) == 0 || p.Findings[0].Name != "commit "+fix {
		t.Errorf("check as JSON: %d, %v\n%s", code, err, out)
	}
	if code, _, errOut := tasksCommand(t, "scrub", dir, "--base", fix); code != exitUsage || !strings.Contains(errOut, "HEAD is not at "+fix) {
		t.Errorf("another base: %d, %s", code, errOut)
	}
	if git("rev-parse", "trunk") != fix {
		t.Error("a refused scrub changed the repository")
	}
	for _, args := range [][]string{{"scrub", dir, "--base", base}, {"scrub", "--check", dir}} {
		if code, out, errOut := tasksCommand(t, args...); code != exitDone || !strings.Contains(out, "all 2 objects are reachable from "+base) {
			t.Errorf("%v: %d\n%s\n%s", args, code, out, errOut)
		}
	}
	if code, _, _ := tasksCommand(t, "scrub"); code != exitUsage {
		t.Errorf("no folder: %d", code)
	}
}
