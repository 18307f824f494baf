package evaluate

import (
	"fmt"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/rollout"
)

// Record is what is kept of one attempt that ended with a grade. It is small: patch, episode and logs lie in files.
type Record struct {
	ID      string              `json:"id"`
	Task    string              `json:"task"`
	Attempt int                 `json:"attempt"`
	Retry   int                 `json:"retry,omitempty"` // times infrastructure lost it before
	Stop    milepost.StopReason `json:"stop"`

	Outcome  string   `json:"outcome"`             // of the grading: resolved, unresolved, tests_timed_out …
	Resolved bool     `json:"resolved"`            // by the task's own rule
	Score    float64  `json:"score"`               // reward by that rule, 0 to 1
	PassRate *float64 `json:"pass_rate,omitempty"` // share of the task's tests that passed; nil where none could be read

	Turns      int            `json:"turns"`
	Usage      *rollout.Usage `json:"usage,omitempty"` // nil where nobody told, as of a script
	Wall       time.Duration  `json:"wall"`            // of the attempt, its grading not counted
	Grading    time.Duration  `json:"grading"`         // until the verdict was there
	PatchBytes int            `json:"patch_bytes"`     // 0: it changed nothing

	Hint     string `json:"hint,omitempty"`      // as grade.Verdict has them
	HintTier string `json:"hint_tier,omitempty"` // environment or ambiguous

	Visible *Visible              `json:"visible,omitempty"` // of --select visible
	Report  *predictions.Instance `json:"report,omitempty"`  // in SWE-bench's form, without the tests' names; nil where its harness would write none
}

// Visible is the outcome of the tests that the agent could see, on an attempt's final tree.
type Visible struct {
	Failing int    `json:"failing"`
	Total   int    `json:"total"` // 0: the task has no visible tests
	Reason  string `json:"reason,omitempty"`
}

// Loss is one time that infrastructure lost an attempt.
type Loss struct {
	ID     string `json:"id"`
	Retry  int    `json:"retry"`
	Kind   string `json:"kind"`   // where and how: "endpoint: unavailable", "sandbox: unavailable", "verdict: late"
	Reason string `json:"reason"` // in words
}

// maxReason bounds the words of a loss, in bytes.
const maxReason = 2000

// NewLoss makes the loss of an attempt. Where is endpoint, sandbox, verdict or another place; how is the kind of failure.
func NewLoss(where, how, reason string) *Loss {
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + " …"
	}
	return &Loss{Kind: fmt.Sprintf("%s: %s", where, how), Reason: reason}
}

// UsageOf is what a token-exact episode cost: each turn's prompt is what stands before its sampled tokens. Nil for an
// episode without tokens.
func UsageOf(ep *milepost.Episode) *rollout.Usage {
	if len(ep.Samples) == 0 {
		return nil
	}
	u := &rollout.Usage{Told: true}
	for i := range ep.Steps {
		u.Prompt += int64(ep.Steps[i].TokenStart)
		u.Completion += int64(ep.Steps[i].Sampled())
	}
	return u
}
