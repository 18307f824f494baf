package rollout

import (
	"embed"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

//go:embed prompts/*.txt
var prompts embed.FS

// Scaffolds lists the scaffolds: what Config.Scaffold may be. Each is a kit of tools, with prompts to it.
func Scaffolds() []string { return tools.Kits() }

// ownPrompt stands in Config's prompts for the scaffold's own.
const ownPrompt = "{scaffold}"

// text reports whether the policy converses in plain text: calls are blocks in its turns, of which its prompts tell, and
// observations are messages of the user.
func (c Config) text() bool { return c.ToolFormat == toolcall.BashBlock }

// prompt is one of the scaffold's own prompts, "system" or "task". Its line end is the file's alone.
func (c Config) prompt(which string) (string, error) {
	name := c.Scaffold
	if c.text() && which == "system" {
		name += "_text"
	}
	data, err := prompts.ReadFile("prompts/" + name + "." + which + ".txt")
	return strings.TrimSuffix(string(data), "\n"), err
}

// checkScaffold reports what does not go together, by YAML name.
func (c Config) checkScaffold() error {
	bad := func(format string, args ...any) error {
		return milepost.E("rollout: config", milepost.KindInvalid, format, args...)
	}
	switch {
	case !slices.Contains(Scaffolds(), c.Scaffold):
		return bad("scaffold: %q is not one of %s", c.Scaffold, strings.Join(Scaffolds(), ", "))
	case c.text() && c.Scaffold != tools.KitBash:
		return bad("tool_format: %s goes with scaffold %s alone, not with %s", c.ToolFormat, tools.KitBash, c.Scaffold)
	case c.Scaffold == tools.KitBash && c.BashWrites == BashWritesForbid:
		return bad("bash_writes: %s goes with no scaffold whose one tool is bash; allowed for %s: %s", c.BashWrites, c.Scaffold, BashWritesCapture)
	}
	for _, which := range []string{"system", "task"} {
		if _, err := c.prompt(which); err != nil {
			return milepost.Wrap("rollout: config", milepost.KindInternal, err)
		}
	}
	return nil
}

// Messages is the opening prompt of a task. workspace is the absolute path under which commands see the repository. The
// configuration must be valid.
func (c Config) Messages(task *milepost.Task, workspace string) []Message {
	fill := strings.NewReplacer("{statement}", task.Statement, "{protected}", strings.Join(task.Protected, "\n"), "{workspace}", workspace)
	own := func(prompt, which string) string {
		text, err := c.prompt(which)
		if err != nil {
			panic("rollout: messages of a configuration that was not validated: " + err.Error())
		}
		return fill.Replace(strings.ReplaceAll(prompt, ownPrompt, text))
	}
	var out []Message
	if c.SystemPrompt != "" {
		out = append(out, Message{Role: RoleSystem, Content: own(c.SystemPrompt, "system")})
	}
	return append(out, Message{Role: RoleUser, Content: own(c.TaskPrompt, "task")})
}

// opening is what a conversation about the task starts from.
func (r *Runner) opening(req Request, workspace string) Opening {
	c := r.cfg
	o := Opening{
		Messages: c.Messages(req.Task, workspace), Tools: r.tools.Specs(), Format: r.format.Name(), Condenser: c.Condenser, Answers: RoleTool,
		Sampling: Sampling{Temperature: c.Temperature, TopP: c.TopP, MaxTurnTokens: c.MaxTurnTokens},
		Seed:     req.Seed, Session: req.Episode, MaxContext: c.MaxContext, MaxTokens: c.MaxTokens, Task: req.Task,
	}
	if c.text() {
		o.Tools, o.Answers = nil, RoleUser
	}
	return o
}
