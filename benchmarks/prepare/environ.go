package prepare

import (
	"bytes"
	"context"
	"maps"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// printPlain and printActive print the environment as it is, and as an interactive use of the image would have it: what
// the root user's .bashrc sets (SWE-bench's images activate there), else the conda environment testbed. An image that
// sets BASH_ENV has said itself what its shells read.
const (
	printPlain  = `unset BASH_ENV; env -0`
	printActive = `if [ -z "${BASH_ENV:-}" ] && [ -r ~root/.bashrc ]; then PS1='$ '; . ~root/.bashrc; fi
if [ -z "${CONDA_PREFIX:-}" ] && [ -z "${VIRTUAL_ENV:-}" ] && [ -d /opt/miniconda3/envs/testbed ]; then . /opt/miniconda3/bin/activate && conda activate testbed; fi
exec 1>&3; env -0`
)

// ofTheShell are variables that say nothing of the image.
var ofTheShell = map[string]bool{"PS1": true, "SHLVL": true, "_": true, "PWD": true, "OLDPWD": true, "HOME": true, "BASH_ENV": true, "LS_COLORS": true, "PROMPT_COMMAND": true}

// environment returns the variables that activating the image's environment sets or changes, so that every command has
// them, whatever program it is and whatever user runs it.
func environment(ctx context.Context, s *env.Sandbox) (map[string]string, error) {
	plain, err := printed(ctx, s, "env", "-u", "BASH_ENV", "bash", "-c", printPlain)
	if err != nil {
		return nil, err
	}
	active, err := printed(ctx, s, "bash", "-c", "exec 3>&1 1>/dev/null\n"+printActive)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, value := range active {
		if !ofTheShell[name] && !strings.HasPrefix(name, "BASH_FUNC_") && plain[name] != value {
			out[name] = value
		}
	}
	return out, nil
}

func printed(ctx context.Context, s *env.Sandbox, argv ...string) (map[string]string, error) {
	r, err := s.Exec(ctx, env.Command{Argv: argv})
	if err != nil {
		return nil, err
	}
	if r.ExitCode != 0 || r.StdoutTruncated {
		return nil, milepost.E("prepare: environment", milepost.KindInvalid, "the image's environment cannot be activated: exit code %d: %.500s", r.ExitCode, r.Stderr)
	}
	out := map[string]string{}
	for entry := range bytes.SplitSeq(r.Stdout, []byte{0}) {
		if name, value, ok := strings.Cut(string(entry), "="); ok {
			out[name] = value
		}
	}
	return out, nil
}

// under returns vars with those of the task over them.
func under(vars, task map[string]string) map[string]string {
	out := maps.Clone(vars)
	maps.Copy(out, task)
	if len(out) == 0 {
		return nil
	}
	return out
}
