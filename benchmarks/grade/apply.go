package grade

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/testrun"
)

// ways are the commands that may apply a patch from standard input, in the order in which they are tried. Source: swebench
// 5.0.2, harness/run_evaluation.py; --verbose is there for the log.
var ways = [][]string{
	{"git", "apply", "--verbose"},
	{"git", "apply", "--verbose", "--3way"},
	{"git", "apply", "--verbose", "--reject"},
	{"patch", "--batch", "--forward", "--fuzz=5", "-p1"},
}

// applyLimit bounds one command of applying.
const applyLimit = 10 * time.Minute

// insideGit finds a path of a patch below a .git folder. git apply refuses such paths, patch does not: it could change
// what HEAD is, and with it what test files are reset to.
var insideGit = regexp.MustCompile(`(?m)^(?:\+\+\+|---|diff --git|rename from|rename to|copy from|copy to|Index:|\*\*\*) .*(?:[/ "])\.git(?:/|[ "\t\r]|$)`)

// apply applies a patch to the repository at root and returns the command that did it, "" where none did, with the words
// of those that failed. Each command but the first starts from a clean reset, since one that failed may leave parts behind.
func apply(ctx context.Context, s *env.Sandbox, root, patch string) (by, words string, err error) {
	if at := insideGit.FindString(patch); at != "" {
		return "", fmt.Sprintf("the patch changes files of git itself: %.200s", at), nil
	}
	var out strings.Builder
	for i, argv := range ways {
		if i > 0 {
			if _, err := inTree(ctx, s, root, "", "bash", "-c", "git checkout -- . ; git clean -fd"); err != nil {
				return "", "", err
			}
		}
		r, err := inTree(ctx, s, root, patch, argv...)
		if err != nil {
			return "", "", err
		}
		if r.ExitCode == 0 && !r.TimedOut {
			return strings.Join(argv, " "), "", nil
		}
		fmt.Fprintf(&out, "%s: exit code %d: %.2000s%.2000s\n", strings.Join(argv, " "), r.ExitCode, r.Stdout, r.Stderr)
	}
	// Commands may apply a patch whole and yet fail; then it comes off again.
	r, err := inTree(ctx, s, root, patch, "git", "apply", "--check", "--reverse")
	if err != nil {
		return "", "", err
	}
	if r.ExitCode == 0 && !r.TimedOut {
		return "verified by git apply --check --reverse", "", nil
	}
	return "", strings.TrimSpace(out.String()), nil
}

// inTree runs a command in the repository, which in an image need not be the sandbox's workspace.
func inTree(ctx context.Context, s *env.Sandbox, root, stdin string, argv ...string) (env.Result, error) {
	argv = append([]string{"bash", "-c", `cd -- "$0" && exec "$@"`, root}, argv...)
	return s.Exec(ctx, env.Command{Argv: argv, Stdin: []byte(stdin), Env: testrun.GitEnv, Limits: env.Limits{Wall: applyLimit}})
}
