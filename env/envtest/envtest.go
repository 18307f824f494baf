// Package envtest is the conformance suite of sandbox drivers: [Run] checks that a driver under the portable type
// behaves as package env promises. A driver's test calls it with a small [Harness].
//
//	files.go    file operations, links, walking
//	changes.go  changes against the base, reset, git data
//	exec.go     commands: results, limits, long-lived processes
//	fork.go     snapshots and sandboxes made from them
//	bench.go    what a sandbox costs, for the drivers' benchmarks
//	base.go     the base repository that all tests begin with
//
// [Escapes] is the same for what only a confined driver can promise; [Control] shows that its attempts succeed without:
//
//	escape.go, escape.py   attempts from inside, and what they go for outside
//	escape_files.go        links and special files that a command leaves for the host
//	escape_plants.go       what a command leaves for a later one, and processes that outlive theirs
//	escape_limits.go       fork bombs, memory, disk and processors
//
// [Left] counts what a driver leaves behind after many episodes, cancellations and killed owners (left.go). A new promise
// of package env gets a test here first.
package envtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
)

// Harness is what the suite needs to know of a driver.
type Harness struct {
	// New makes a driver; the suite closes it.
	New func(t *testing.T) driver.Driver
	// Argv turns a verb (see [Verbs]) into a command of the driver.
	Argv func(verb string, args ...string) []string
	// Missing says that the driver answers 127 for a program that is not there; false where it cannot know.
	Missing bool
}

// Verbs are the commands that the suite runs, with their arguments.
//
//	echo TEXT        prints TEXT and a newline
//	fail CODE TEXT   prints TEXT to standard error, without a newline, and exits with CODE
//	cat              copies standard input to standard output
//	read PATH        prints the file PATH, relative to its working directory
//	write PATH TEXT  writes TEXT to the file PATH, relative to its working directory
//	env NAME         prints the value of the environment variable NAME, without a newline
//	spam N           prints N bytes x
//	hang             never ends by itself
//	serve            answers every line L of standard input with "got L" and a newline; exits 5 at the end of input
const Verbs = "echo fail cat read write env spam hang serve"

// ShellArgv is the Argv of a driver that runs real programs.
func ShellArgv(verb string, args ...string) []string {
	script, ok := map[string]string{
		"echo": `printf '%s\n' "$1"`, "fail": `printf %s "$2" >&2; exit "$1"`, "cat": `exec cat`, "read": `exec cat "$1"`,
		"write": `printf %s "$2" >"$1"`, "env": `eval "printf %s \"\$$1\""`, "spam": `head -c "$1" /dev/zero | tr '\0' x`,
		"hang": `exec sleep 1000`, "serve": `while read -r line; do printf 'got %s\n' "$line"; done; exit 5`,
	}[verb]
	if !ok {
		panic(fmt.Sprintf("envtest: verb %q is not one of %s", verb, Verbs))
	}
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

// suite is one run: harness and the environment that most tests share.
type suite struct {
	Harness
	shared *env.Env
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	s := &suite{h, env.New(h.New(t))}
	defer func() {
		if n := s.shared.Open(); n != 0 {
			t.Errorf("%d sandboxes are still open", n)
		}
		if err := s.shared.Close(); err != nil {
			t.Errorf("Env.Close: %v", err)
		}
	}()
	t.Run("Files", s.testFiles)
	t.Run("Paths", s.testPaths)
	t.Run("Links", s.testLinks)
	t.Run("Walk", s.testWalk)
	t.Run("ReadLimit", s.testReadLimit)
	t.Run("Changes", s.testChanges)
	t.Run("ChangesLimit", s.testChangesLimit)
	t.Run("Reset", s.testReset)
	t.Run("Git", s.testGit)
	t.Run("Fork", s.testFork)
	t.Run("Create", s.testCreate)
	t.Run("Exec", s.testExec)
	t.Run("ExecInvalid", s.testExecInvalid)
	t.Run("Output", s.testOutput)
	t.Run("WallTime", s.testWallTime)
	t.Run("Cancel", s.testCancel)
	t.Run("Concurrent", s.testConcurrent)
	t.Run("Start", s.testStart)
	t.Run("Closed", s.testClosed)
	t.Run("CloseInside", s.testCloseInside)
}

// open makes a sandbox on a fresh base, in an environment of its own where there are options. It is closed with the
// test, after which the base must be as it was.
func (s *suite) open(t *testing.T, opts ...env.Option) *env.Sandbox {
	t.Helper()
	e := s.shared
	if len(opts) > 0 {
		e = env.New(s.New(t), opts...)
	}
	base := MakeBase(t)
	before := fingerprint(t, base)
	sb, err := e.Create(context.Background(), env.Spec{Name: t.Name(), Base: base, Env: map[string]string{"FROM_SPEC": "spec", "BOTH": "spec"}})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if e != s.shared {
			if err := e.Close(); err != nil {
				t.Errorf("Env.Close: %v", err)
			}
		}
		if after := fingerprint(t, base); after != before {
			t.Errorf("the base was written to:\n%s\nwas\n%s", after, before)
		}
	})
	return sb
}

// run executes a verb and fails the test on an error.
func (s *suite) run(t *testing.T, sb *env.Sandbox, verb string, args ...string) env.Result {
	t.Helper()
	r, err := sb.Exec(context.Background(), env.Command{Argv: s.Argv(verb, args...)})
	if err != nil {
		t.Fatalf("Exec %s %v: %v", verb, args, err)
	}
	return r
}

// wantKind checks an error's kind, and that its message begins with an operation of env.
func wantKind(t *testing.T, what string, err error, kind milepost.Kind) {
	t.Helper()
	if got := milepost.KindOf(err); got != kind {
		t.Errorf("%s: kind %q (%v), want %q", what, got, err, kind)
	}
	if err != nil && !strings.HasPrefix(err.Error(), "env: ") {
		t.Errorf("%s: error %q does not begin with the operation", what, err)
	}
}

// must fails the test on an error.
func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
