package envtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// plant leaves, wherever a command can write, what later runs of Python, a shell, git and pytest would pick up; each says
// "tainted" when it does. The last line tries to change what is looked up in PATH.
const plant = `
site=$(python3 -c 'import site; print(site.getusersitepackages())')
mkdir -p "$site" "$HOME/bin"
echo 'print("tainted: usercustomize")' >"$site/usercustomize.py"
echo 'print("tainted: sitecustomize")' >"$site/sitecustomize.py"
echo 'import sys; print("tainted: pth")' >"$site/evil.pth"
echo 'print("tainted: startup")' >/tmp/startup.py
echo 'print("tainted: conftest")' | tee conftest.py /tmp/conftest.py ../conftest.py >/dev/null 2>&1
echo 'print("tainted: module")' | tee json.py unittest.py /tmp/json.py >/dev/null
for f in .profile .bashrc .bash_profile; do echo 'echo tainted: profile; PYTHONSTARTUP=/tmp/startup.py; PYTHONPATH=/tmp; LD_PRELOAD=/tmp/evil.so; export PYTHONSTARTUP PYTHONPATH LD_PRELOAD' >"$HOME/$f"; done
printf '[core]\n\tfsmonitor = echo tainted: fsmonitor >&2; false\n[alias]\n\tst = !echo tainted\n' | tee "$HOME/.gitconfig" >.git/config
printf '#!/bin/sh\necho tainted: hook\n' >.git/hooks/post-checkout; chmod +x .git/hooks/post-checkout
export PYTHONSTARTUP=/tmp/startup.py PYTHONPATH=/tmp LD_PRELOAD=/tmp/evil.so PATH=/tmp:$PATH
for d in "$HOME/bin" /usr/local/bin /usr/bin /bin /tmp; do printf '#!/bin/sh\necho tainted: PATH\n' >"$d/python3"; chmod +x "$d/python3"; done 2>/dev/null
true`

// pick does what a grader does: it runs Python, a login shell, and what pytest would import. A trace of the plant shows.
const pick = `
env | grep -E 'PYTHON(STARTUP|PATH)|LD_PRELOAD|^PATH=/tmp' | sed 's/^/tainted: /'
python3 -c 'import json' </dev/null
bash -lc true
git config --get core.fsmonitor
python3 - <<'END'
import os
d = os.getcwd()
while True: # as pytest looks for them
    if os.path.exists(os.path.join(d, "conftest.py")): exec(open(os.path.join(d, "conftest.py")).read())
    if d == "/": break
    d = os.path.dirname(d)
END
true`

// testPlants checks that what one sandbox leaves reaches no grader: neither the same sandbox after Reset nor another one. In
// the same sandbox without Reset it does, which shows that the plants work.
func (c Confined) testPlants(t *testing.T) {
	e := c.env(t)
	base := MakeBase(t)
	other, err := e.Create(ctx, env.Spec{Base: base})
	must(t, "Create", err)
	s, err := e.Create(ctx, env.Spec{Base: base})
	must(t, "Create", err)
	picked := func(s *env.Sandbox) string {
		r := shell(t, s, env.Limits{}, pick)
		var out []string
		for line := range strings.Lines(string(r.Stdout) + string(r.Stderr)) {
			if strings.Contains(line, "tainted") {
				out = append(out, strings.TrimSpace(line))
			}
		}
		return strings.Join(out, "; ")
	}
	if got := picked(s); got != "" {
		t.Fatalf("before anything was planted: %s", got)
	}
	shell(t, s, env.Limits{}, plant)
	want := []string{"conftest", "fsmonitor"}
	if c.Keeps {
		want = append(want, "pth", "profile")
	}
	got := picked(s)
	for _, w := range want {
		if !strings.Contains(got, "tainted: "+w) {
			t.Errorf("the plant %s does not work even where it was planted: %q", w, got)
		}
	}
	if strings.Contains(got, "PATH") || strings.Contains(got, "/tmp/startup.py") && !c.Keeps {
		t.Errorf("a command changed the environment or the programs of the next: %s", got)
	}
	if got := picked(other); got != "" {
		t.Errorf("another sandbox: %s", got)
	}
	fresh, err := e.Create(ctx, env.Spec{Base: base})
	must(t, "Create", err)
	if got := picked(fresh); got != "" {
		t.Errorf("a sandbox that was made later: %s", got)
	}
	must(t, "Reset", s.Reset(ctx))
	if got := picked(s); got != "" {
		t.Errorf("after Reset: %s", got)
	}
	testGitPlants(t, s)
}

// testGitPlants checks that nothing the host does with a workspace runs what its .git says.
func testGitPlants(t *testing.T, s *env.Sandbox) {
	dir := t.TempDir()
	marker := filepath.Join(dir, "ran")
	command := "touch " + marker
	config := fmt.Sprintf("[core]\n\tfsmonitor = %s\n\thooksPath = .\n\tsshCommand = %s\n[filter \"x\"]\n\tclean = %s\n\tsmudge = %s\n[diff]\n\texternal = %s\n", command, command, command, command, command)
	must(t, "WriteFile", s.WriteFile(ctx, ".git/config", []byte(config), 0))
	must(t, "WriteFile", s.WriteFile(ctx, ".gitattributes", []byte("* filter=x\n"), 0))
	must(t, "WriteFile", s.WriteFile(ctx, ".git/hooks/post-checkout", []byte("#!/bin/sh\n"+command+"\n"), 0o755))
	_, err := s.Changes(ctx)
	must(t, "Changes", err)
	snapshot, err := s.Snapshot(ctx)
	must(t, "Snapshot", err)
	if moved, err := s.GitMoved(ctx); err != nil || !moved {
		t.Errorf("GitMoved: %v %v", moved, err)
	}
	if snapshot.Size() == 0 {
		t.Error("the snapshot is empty")
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the host ran what a workspace's git configuration says")
	}
	// The same configuration, used by git on this machine, does run it.
	if err := exec.Command("git", "init", "-q", dir).Run(); err != nil {
		t.Skip("no git to show that the configuration works")
	}
	must(t, "config", os.WriteFile(filepath.Join(dir, ".git/config"), []byte("[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "+command+"\n"), 0o644))
	_ = exec.Command("git", "-C", dir, "status").Run() // whatever it says
	if _, err := os.Stat(marker); err != nil {
		t.Errorf("the configuration does not work even where git uses it: %v", err)
	}
}

// testSurvivors checks that an ended command leaves no process, however it hid them and in any way of ending, and that a
// command beside it is not touched.
func (c Confined) testSurvivors(t *testing.T) {
	s, err := c.env(t).Create(ctx, env.Spec{Base: MakeBase(t)})
	must(t, "Create", err)
	beside, err := s.Start(ctx, env.Command{Argv: ShellArgv("serve")})
	must(t, "Start", err)
	ends := map[string]struct {
		end  string
		wall time.Duration
	}{"exit": {"exit 0", 0}, "time-out": {"sleep 1000", time.Second}, "kill-parent": {"kill -9 $PPID; sleep 1000", 2 * time.Second}}
	for name, e := range ends {
		marker := fmt.Sprintf("marker-%d-%s", os.Getpid(), name)
		script := `for i in 1 2 3; do setsid sh -c 'trap "" TERM HUP INT; (sleep 2.5; touch late-$1; exec sleep 1000) & exec sleep 999' "$1" "$1" >/dev/null 2>&1 </dev/null & done
			(while :; do echo still; sleep 0.01; done) & sleep 0.1; ` + e.end
		r := shell(t, s, env.Limits{Wall: e.wall}, script, marker)
		if name != "kill-parent" && r.TimedOut != (e.wall > 0) {
			t.Errorf("%s: %+v", name, r)
		}
		if left := Processes(t, marker); len(left) > 0 {
			t.Errorf("%s: processes %v are left", name, left)
		}
	}
	time.Sleep(2600 * time.Millisecond)
	for name := range ends {
		if _, err := s.Stat(ctx, fmt.Sprintf("late-marker-%d-%s", os.Getpid(), name)); milepost.KindOf(err) != milepost.KindNotFound {
			t.Errorf("%s: a process wrote after its command had ended: %v", name, err)
		}
	}
	answers(t, beside, "the command beside")
}
