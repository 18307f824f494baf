package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// executeBash runs a shell command in the root of the repository. Standard output comes first in the observation, then
// standard error, then how the command ended unless it ended well.
type executeBash struct{ cfg *Config }

func (executeBash) Name() string { return "execute_bash" }
func (executeBash) Writes() bool { return true }

func (t executeBash) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct{ Command string }
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: execute_bash", milepost.KindInvalid, err)
	}
	r, err := s.Workspace.Exec(ctx, env.Command{Argv: []string{t.cfg.Shell, "-c", a.Command}, Limits: env.Limits{Wall: t.cfg.BashTimeout}})
	if err != nil {
		return Result{}, err
	}
	return Result{Text: t.text(r), Exposures: s.exposed(s.place(), a.Command, r)}, nil
}

func (t executeBash) text(r env.Result) string {
	var parts []string
	stream := func(name string, data []byte, truncated bool) {
		if text := strings.TrimSuffix(string(data), "\n"); text != "" {
			parts = append(parts, text)
		}
		if truncated {
			parts = append(parts, fmt.Sprintf("[%s went on and was dropped]", name))
		}
	}
	stream("standard output", r.Stdout, r.StdoutTruncated)
	stream("standard error", r.Stderr, r.StderrTruncated)
	switch {
	case r.TimedOut:
		parts = append(parts, fmt.Sprintf("[killed after %v]", t.cfg.BashTimeout))
	case r.OutOfMemory:
		parts = append(parts, "[killed: out of memory]")
	case r.ExitCode != 0:
		parts = append(parts, fmt.Sprintf("[exit %d]", r.ExitCode))
	}
	if len(parts) == 0 {
		return "(no output)"
	}
	return strings.Join(parts, "\n")
}
