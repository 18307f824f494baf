package tools

import (
	"context"
	_ "embed"
	"path"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

//go:embed shellsession.sh
var sessionScript string

// shellState is what one command of a shell session leaves to the next: working directory and exported variables. Functions,
// aliases and background processes end with their command, since nothing of a command outlives it in a sandbox.
type shellState struct {
	dir     string // absolute; "" before the first command, which starts in the repository
	exports string
}

// maxExports is the most that is passed on to the next command; Linux takes 128 KiB as one argument.
const maxExports = 100 << 10

// agentEnv keeps programs from waiting at a pager and from drawing progress bars, as the other systems' configurations do.
var agentEnv = map[string]string{"PAGER": "cat", "MANPAGER": "cat", "GIT_PAGER": "cat", "LESS": "-R", "PIP_PROGRESS_BAR": "off", "TQDM_DISABLE": "1"}

// inSession runs a command of a session: standard output and standard error together in Stdout. A command that was killed
// leaves the session as it was before it.
func inSession(ctx context.Context, s *Session, cfg *Config, command string, wall time.Duration) (env.Result, error) {
	dir := s.shell.dir
	if dir == "" {
		dir = "."
	}
	r, err := s.Workspace.Exec(ctx, env.Command{
		Argv: []string{cfg.Shell, "-c", sessionScript, cfg.Shell, dir, s.shell.exports, command}, Env: agentEnv, Limits: env.Limits{Wall: wall}})
	if err != nil {
		return r, err
	}
	ended, exports, whole := strings.Cut(string(r.Stderr), "\x00")
	if whole && !r.StderrTruncated && !r.TimedOut && path.IsAbs(ended) {
		s.shell.dir = ended
		if len(exports) <= maxExports {
			s.shell.exports = exports
		}
	}
	return r, nil
}

// freshly runs a command in a shell of its own, standard output and standard error together in Stdout.
func freshly(ctx context.Context, s *Session, cfg *Config, command string) (env.Result, error) {
	return s.Workspace.Exec(ctx, env.Command{
		Argv: []string{cfg.Shell, "-c", `exec "$0" -c "$1" 2>&1`, cfg.Shell, command}, Env: agentEnv, Limits: env.Limits{Wall: cfg.BashTimeout}})
}

// place is where a shell command of the session starts.
func (s *Session) place() shellPlace {
	p := shellPlace{root: s.Root, dir: ".", sure: true}
	if s.shell.dir != "" {
		p.dir, p.sure = p.relative(s.shell.dir)
	}
	return p
}

// exposed says which files a command showed that ended in r.
func (s *Session) exposed(start shellPlace, command string, r env.Result) []milepost.Exposure {
	ok := r.ExitCode == 0 && !r.TimedOut && !r.OutOfMemory
	return shellExposures(command, s.Repo.Index(), start, ok, string(r.Stdout))
}
