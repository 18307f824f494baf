package milepost

import (
	"encoding/json"
	"time"
)

// EpisodeStatus says how an episode ended.
type EpisodeStatus string

// The ends of an episode.
const (
	EpisodeCompleted EpisodeStatus = "completed"   // the agent submitted
	EpisodeLimit     EpisodeStatus = "limit"       // a limit stopped it; it is graded like any other
	EpisodeInfra     EpisodeStatus = "infra_error" // in no statistic; trains nothing; retried
	EpisodeCancelled EpisodeStatus = "cancelled"   // surplus or shutdown; trains nothing
)

// StopReason says what ended the agent loop.
type StopReason string

// The reasons for which a loop ends.
const (
	StopSubmit   StopReason = "submit"
	StopTurns    StopReason = "max_turns"
	StopTokens   StopReason = "max_tokens"
	StopWall     StopReason = "wall_time"
	StopContext  StopReason = "context"
	StopError    StopReason = "error"
	StopCanceled StopReason = "canceled"
)

// Episode is one attempt at one task: what the agent did, the exact tokens, and the outcome.
type Episode struct {
	ID      string        `json:"id"`
	Group   string        `json:"group"` // the dispatch it belongs to; all of a group share one task
	Task    string        `json:"task"`
	Attempt int           `json:"attempt"` // index within the group, from 0
	Retry   int           `json:"retry,omitempty"`
	Status  EpisodeStatus `json:"status"`
	Stop    StopReason    `json:"stop"`
	Error   string        `json:"error,omitempty"` // for infra_error: what failed

	Steps      []Step       `json:"steps"`
	Samples    []Sample     `json:"samples,omitempty"` // more than one where context management broke the prefix
	FinalState string       `json:"final_state"`
	FinalTree  string       `json:"final_tree"`
	FinalDelta []TreeChange `json:"final_delta,omitempty"` // as Step.Delta, of the final tree
	Patch      string       `json:"patch"`                 // git diff from the base tree to the final tree
	Outcome    Outcome      `json:"outcome"`

	Endpoint string        `json:"endpoint,omitempty"`
	Started  time.Time     `json:"started"`
	Duration time.Duration `json:"duration"`
}

// Outcome is the verdict on the final state, from a fresh sandbox that the agent never touched.
type Outcome struct {
	Graded     bool               `json:"graded"`
	Reward     float64            `json:"reward"`
	Resolved   bool               `json:"resolved"`
	Objectives map[string]float64 `json:"objectives,omitempty"` // for mo_grpo
	Verdict    *Probe             `json:"verdict,omitempty"`
}

// Step is one model call and the tool call in it.
type Step struct {
	Index     int        `json:"index"`
	State     string     `json:"state"`               // state key before the action: tree plus files read so far
	Tree      string     `json:"tree"`                // git tree id after the action
	Valid     bool       `json:"valid"`               // the call parsed, met its schema and broke no policy
	Violation Violation  `json:"violation,omitempty"` // why it is not valid
	Executed  bool       `json:"executed"`            // the tool ran; exposures of an action that did not are not counted
	Action    Action     `json:"action"`
	Observed  string     `json:"observation"`
	Exposures []Exposure `json:"exposures,omitempty"`
	Changed   []string   `json:"changed,omitempty"` // paths whose content differs from before the action

	// Delta is the whole difference from the task's base tree to Tree, sorted by path; set where the step changed the
	// repository. With the blob store of the run it is enough to probe the step again at any time.
	Delta []TreeChange `json:"delta,omitempty"`

	Probe      *Probe        `json:"probe,omitempty"` // nil where the step did not change the repository
	Sample     int           `json:"sample"`          // index into Episode.Samples
	TokenStart int           `json:"token_start"`     // sampled tokens of this step: [TokenStart, TokenEnd) of that sample
	TokenEnd   int           `json:"token_end"`
	ModelTime  time.Duration `json:"model_time"` // nanoseconds on disk
	ToolTime   time.Duration `json:"tool_time"`
}

// Sampled returns the number of tokens that the policy sampled in the step.
func (s *Step) Sampled() int { return s.TokenEnd - s.TokenStart }

// Sampled returns the number of tokens that the policy sampled in the episode.
func (e *Episode) Sampled() int {
	n := 0
	for i := range e.Steps {
		n += e.Steps[i].Sampled()
	}
	return n
}

// Violation is why a call was not valid; each earns the format term f = -1.
type Violation string

// The violations. Parse and schema are the call's form, the others break policy and are rolled back.
const (
	ViolationParse     Violation = "parse"      // no well-formed tool call in the sampled text
	ViolationSchema    Violation = "schema"     // unknown tool, or arguments that break its JSON schema
	ViolationProtected Violation = "protected"  // a protected path was changed
	ViolationHead      Violation = "head"       // HEAD or the repository's own git data was moved
	ViolationBashWrite Violation = "bash_write" // bash changed the repository under bash_writes: forbid
)

// Action is the tool call of a step as the policy wrote it.
type Action struct {
	Tool      string          `json:"tool,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Text      string          `json:"text"` // the whole sampled text of the turn
}

// ExposureLevel says how much of a file an observation showed.
type ExposureLevel string

// The levels: a search hit shows the path, a read its content.
const (
	ExposureSearch ExposureLevel = "search"
	ExposureRead   ExposureLevel = "read"
)

// Exposure is one file that a tool result showed, for navigation credit.
type Exposure struct {
	Path       string        `json:"path"` // relative to the repository root, slash separated
	Level      ExposureLevel `json:"level"`
	Confidence string        `json:"confidence"` // high or low; only high counts
}

// Sample is one training sequence: the exact token ids of prompt and samples in order. All slices have the same
// length T; Routes speak of fewer.
type Sample struct {
	Tokens   []int32   `json:"tokens"`
	Logprobs []float32 `json:"logprobs"` // the sampler's logprob of token t; 0 where not sampled
	Versions []int32   `json:"versions"` // weight version token t was sampled under; -1 where not sampled (prompt, tool, template)
	Steps    []int32   `json:"steps"`    // index of the step that sampled token t; -1 where not sampled

	Routes *Routes `json:"routes,omitempty"` // experts of the first tokens; nil where the run does not replay them
}
