package rollout

import (
	"slices"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// The values of Config.BashWrites.
const (
	// BashWritesForbid makes every change of the repository through execute_bash a violation that is rolled back.
	BashWritesForbid = "forbid"
	// BashWritesCapture lets bash change the repository; the tree is taken after each command.
	BashWritesCapture = "capture"
)

// Config is the scaffold an agent works in and the limits of its episodes.
type Config struct {
	// Scaffold is the agent system whose tools, wording and prompts an agent works with: milepost, bash (mini-swe-agent's way: bash
	// alone), swe_agent or openhands. Credit is the same by each: edits are seen in the tree, reads in calls and commands.
	Scaffold string `yaml:"scaffold"`
	// MaxTurns ends an episode after so many model calls.
	MaxTurns int `yaml:"max_turns"`
	// MaxTokens ends an episode once so many tokens were sampled; 0 = no bound.
	MaxTokens int `yaml:"max_tokens"`
	// MaxTurnTokens is the most tokens sampled in one turn; a turn that reaches it is cut off and not executed.
	MaxTurnTokens int `yaml:"max_turn_tokens"`
	// MaxContext is the most tokens of prompt and sample together in one turn; 0 = what the model can.
	MaxContext int `yaml:"max_context"`
	// Wall ends an episode after so much time, the model's included.
	Wall time.Duration `yaml:"wall"`

	// Temperature of sampling; 0 is greedy.
	Temperature float64 `yaml:"temperature"`
	// TopP of sampling; 1 is off. Training needs 1: anything else biases the importance ratio.
	TopP float64 `yaml:"top_p"`

	// ToolFormat is how calls are written in sampled text: hermes, qwen3_coder, or, for scaffold bash, bash_block: one fenced
	// block mswea_bash_command in each turn, observations as user messages, no tools told. Chat endpoints with tools of their
	// own need none but bash_block.
	ToolFormat string `yaml:"tool_format"`
	// BashWrites is what happens to changes made through execute_bash: forbid (a violation, rolled back) or capture (taken
	// as the step's change).
	BashWrites string `yaml:"bash_writes"`
	// SystemPrompt opens the conversation; "" leaves the system message out. {scaffold} stands for the scaffold's own. The tools
	// are told to the model apart.
	SystemPrompt string `yaml:"system_prompt"`
	// TaskPrompt is the user message. {scaffold} stands for the scaffold's own, {statement} for the task's statement; one of
	// them must occur. {protected} stands for the protected paths, one per line, {workspace} for where commands see the
	// repository.
	TaskPrompt string `yaml:"task_prompt"`

	// ProbeSteps publishes a probe for every step that changed the repository; without it only the verdict is.
	ProbeSteps bool `yaml:"probe_steps"`
	// ToolWait is added to every tool call of a training episode: a stand-in for slow sandboxes in studies of throughput. It
	// changes nothing of what an episode does.
	ToolWait time.Duration `yaml:"tool_wait"`
	// Sandbox bounds the sandbox of an episode; zero fields take the environment's defaults.
	Sandbox env.Limits `yaml:"sandbox"`
	// Tools chooses the tools and how much they show.
	Tools tools.Config `yaml:"tools"`
	// Condenser says how much of a long history the policy still sees.
	Condenser Condenser `yaml:"condenser"`
}

// Default is a scaffold for a large model; small models want fewer tools and tighter limits.
func Default() Config {
	return Config{
		MaxTurns: 50, MaxTokens: 32768, MaxTurnTokens: 4096, Wall: 30 * time.Minute,
		Temperature: 1, TopP: 1,
		ToolFormat: toolcall.Hermes, BashWrites: BashWritesCapture,
		Scaffold: tools.KitMilepost, SystemPrompt: ownPrompt, TaskPrompt: ownPrompt,
		ProbeSteps: true,
		Tools:      tools.Default(),
		Condenser:  DefaultCondenser(),
	}
}

// Validate reports the first field that is out of range, by its YAML name.
func (c Config) Validate() error {
	bad := func(format string, args ...any) error {
		return milepost.E("rollout: config", milepost.KindInvalid, format, args...)
	}
	switch {
	case c.MaxTurns < 1:
		return bad("max_turns: %d is not at least 1", c.MaxTurns)
	case c.MaxTokens < 0:
		return bad("max_tokens: %d is negative; 0 means no bound", c.MaxTokens)
	case c.MaxTurnTokens < 1:
		return bad("max_turn_tokens: %d is not at least 1", c.MaxTurnTokens)
	case c.MaxContext < 0:
		return bad("max_context: %d is negative; 0 means what the model can", c.MaxContext)
	case c.Wall <= 0:
		return bad("wall: %v is not positive", c.Wall)
	case c.ToolWait < 0:
		return bad("tool_wait: %v is negative; 0 means no wait", c.ToolWait)
	case !(c.Temperature >= 0 && c.Temperature <= 10):
		return bad("temperature: %v is not between 0 and 10", c.Temperature)
	case !(c.TopP > 0 && c.TopP <= 1):
		return bad("top_p: %v is not in (0, 1]", c.TopP)
	case !slices.Contains(toolcall.Names(), c.ToolFormat):
		return bad("tool_format: %q is not one of %s", c.ToolFormat, strings.Join(toolcall.Names(), ", "))
	case c.BashWrites != BashWritesForbid && c.BashWrites != BashWritesCapture:
		return bad("bash_writes: %q is not one of %s, %s", c.BashWrites, BashWritesForbid, BashWritesCapture)
	case !strings.Contains(c.TaskPrompt, "{statement}") && !strings.Contains(c.TaskPrompt, ownPrompt):
		return bad("task_prompt: {statement} is missing, and {scaffold} too")
	}
	if err := c.checkScaffold(); err != nil {
		return err
	}
	if err := c.Condenser.Validate(); err != nil {
		return bad("condenser.%s", toolcall.Why(err))
	}
	if err := c.Tools.Validate(c.Scaffold); err != nil {
		return bad("tools.%s", toolcall.Why(err))
	}
	return nil
}
