package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/milepost-rl/milepost"
)

// gitCommand is one call of the git binary with nothing of the user's or system's configuration, so that the same
// call does the same on every machine. Of the repository's own settings none that names a program or fetches is followed:
// a task's repository may come from anywhere, and objects that it lacks are an error.
type gitCommand struct {
	dir   string // working directory
	env   []string
	stdin io.Reader
	args  []string
}

// run runs git and returns its standard output. A failure is an error of the given kind with git's own words.
func (g gitCommand) run(ctx context.Context, op string, kind milepost.Kind) ([]byte, error) {
	var out bytes.Buffer
	err := g.stream(ctx, op, kind, &out)
	return out.Bytes(), err
}

// stream is run with the standard output going to w.
func (g gitCommand) stream(ctx context.Context, op string, kind milepost.Kind, w io.Writer) error {
	cmd := Git(ctx, g.args...)
	cmd.Dir = g.dir
	cmd.Stdin = g.stdin
	cmd.Stdout = w
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(cmd.Env, g.env...)
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, ctx.Err())
	}
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		kind = milepost.KindUnavailable // git could not be started
	}
	words := strings.TrimSpace(stderr.String())
	if strings.Contains(words, "No space left on device") {
		kind = milepost.KindUnavailable
	}
	return milepost.E(op, kind, "git %s: %w: %s", g.args[0], err, words)
}

// Git is a git command for a repository of which nothing is trusted: it reads no configuration but the repository's own,
// whoever owns it, runs no hook and no monitor, fetches nothing, and its output is in no language of the user's.
func Git(ctx context.Context, args ...string) *exec.Cmd {
	fixed := []string{"-c", "safe.directory=*", "-c", "core.autocrlf=false", "-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c", "gc.auto=0"}
	cmd := exec.CommandContext(ctx, "git", append(fixed, args...)...)
	cmd.Env = append(cleanEnv(), "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none")
	return cmd
}

func cleanEnv() []string {
	env := []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_ATTR_NOSYSTEM=1", "LC_ALL=C", "TZ=UTC", "GIT_TERMINAL_PROMPT=0"}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GIT_") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "TZ=") {
			env = append(env, kv)
		}
	}
	return env
}
