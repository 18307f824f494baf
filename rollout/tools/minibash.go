package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// miniBash is mini-swe-agent's one tool: each command in a fresh shell, and a command whose output begins with the line
// submitLine, and which succeeds, hands in. What is handed in is the repository as it is: a patch printed behind that line
// is not applied, since steps are probed and graded by their trees.
type miniBash struct{ cfg *Config }

const (
	submitLine = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
	miniOutput = 10000 // most characters of output that are shown whole
)

func (miniBash) Name() string { return "bash" }
func (miniBash) Writes() bool { return true }

func (t miniBash) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct{ Command string }
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: bash", milepost.KindInvalid, err)
	}
	r, err := freshly(ctx, s, t.cfg, a.Command)
	if err != nil {
		return Result{}, err
	}
	return Result{Text: t.text(r), Exposures: s.exposed(s.place(), a.Command, r), Submit: submits(r)}, nil
}

// submits reports whether the command handed in.
func submits(r env.Result) bool {
	first, _, _ := strings.Cut(strings.TrimLeft(string(r.Stdout), " \t\r\n"), "\n")
	return strings.TrimSpace(first) == submitLine && r.ExitCode == 0 && !r.TimedOut && !r.OutOfMemory
}

// text has the sections of mini-swe-agent's observation_template.
func (t miniBash) text(r env.Result) string {
	var b strings.Builder
	code := r.ExitCode
	switch {
	case r.TimedOut:
		code = -1
		fmt.Fprintf(&b, "<exception>The command was stopped after %v.</exception>\n", t.cfg.BashTimeout)
	case r.OutOfMemory:
		b.WriteString("<exception>The command ran out of memory.</exception>\n")
	}
	fmt.Fprintf(&b, "<returncode>%d</returncode>\n", code)
	out := []rune(strings.ToValidUTF8(string(r.Stdout), "\ufffd"))
	if len(out) < miniOutput && !r.StdoutTruncated {
		return b.String() + "<output>\n" + string(out) + "</output>"
	}
	const half = miniOutput / 2
	elided := fmt.Sprintf("%d characters elided", max(len(out)-miniOutput, 0))
	if r.StdoutTruncated {
		elided = "at least " + elided
	}
	fmt.Fprintf(&b, "<warning>\nThe output is too long to be shown whole. Look at less of it at a time: with head, tail or sed, with a narrower pattern,\nor by writing it to a file and searching that.\n</warning>"+
		"<output_head>\n%s\n</output_head>\n<elided_chars>\n%s\n</elided_chars>\n<output_tail>\n%s\n</output_tail>",
		string(out[:min(half, len(out))]), elided, string(out[max(len(out)-half, 0):]))
	return b.String()
}
