package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// sweBash is SWE-agent's bash: a session, whose output alone is shown.
type sweBash struct{ cfg *Config }

func (sweBash) Name() string { return "bash" }
func (sweBash) Writes() bool { return true }

func (t sweBash) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct{ Command string }
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: bash", milepost.KindInvalid, err)
	}
	start := s.place()
	r, err := inSession(ctx, s, t.cfg, a.Command, t.cfg.BashTimeout)
	if err != nil {
		return Result{}, err
	}
	text := strings.TrimSuffix(string(r.Stdout), "\n")
	if end := unusualEnd(r, t.cfg.BashTimeout); end != "" {
		text = strings.TrimPrefix(text+"\n"+end, "\n")
	}
	return Result{Text: text, Exposures: s.exposed(start, a.Command, r)}, nil
}

// unusualEnd says what stopped a command, "" where it ended by itself and was shown whole.
func unusualEnd(r env.Result, wall time.Duration) string {
	switch {
	case r.TimedOut:
		return fmt.Sprintf("[The command was stopped after %v. The session is as it was before.]", wall)
	case r.OutOfMemory:
		return "[The command ran out of memory.]"
	case r.StdoutTruncated:
		return "[The output went on and was dropped.]"
	}
	return ""
}

// handsBash is OpenHands' execute_bash: a session, and behind the output where and how the command ended.
type handsBash struct{ cfg *Config }

func (handsBash) Name() string { return "execute_bash" }
func (handsBash) Writes() bool { return true }

func (t handsBash) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct {
		Command string
		Input   string `json:"is_input"`
		Timeout float64
	}
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: execute_bash", milepost.KindInvalid, err)
	}
	if a.Input == "true" || strings.TrimSpace(a.Command) == "" {
		return Result{Text: "ERROR: No previous running command to interact with."}, nil
	}
	wall := t.cfg.BashTimeout
	if asked := time.Duration(min(a.Timeout, wall.Seconds()) * float64(time.Second)); asked > 0 {
		wall = asked
	}
	start := s.place()
	r, err := inSession(ctx, s, t.cfg, a.Command, wall)
	if err != nil {
		return Result{}, err
	}
	return Result{Text: t.text(s, r, wall), Exposures: s.exposed(start, a.Command, r)}, nil
}

// text ends as OpenHands' CmdOutputObservation does.
func (t handsBash) text(s *Session, r env.Result, wall time.Duration) string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(string(r.Stdout), "\n"))
	code := r.ExitCode
	if end := unusualEnd(r, wall); end != "" {
		b.WriteString("\n" + end)
	}
	if r.TimedOut {
		code = -1
	} else {
		fmt.Fprintf(&b, "\n[The command completed with exit code %d.]", code)
	}
	dir := s.shell.dir
	if dir == "" {
		dir = s.Root
	}
	fmt.Fprintf(&b, "\n[Current working directory: %s]", dir)
	if code != -1 {
		fmt.Fprintf(&b, "\n[Command finished with exit code %d]", code)
	}
	return strings.TrimPrefix(b.String(), "\n")
}
