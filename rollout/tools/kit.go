package tools

import (
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// The kits: the tools of one agent system, with its names, parameters and the wording of its observations.
const (
	KitMilepost  = "milepost"  // Milepost's own: short observations, for small models and for training
	KitBash      = "bash"      // mini-swe-agent's: bash alone, a fresh shell for each command
	KitSWEAgent  = "swe_agent" // SWE-agent's: str_replace_editor, bash that goes on, submit
	KitOpenHands = "openhands" // OpenHands': execute_bash that goes on, str_replace_editor, think, task_tracker, finish
)

// Kits lists the kits.
func Kits() []string { return []string{KitMilepost, KitBash, KitSWEAgent, KitOpenHands} }

// kit is one agent system's tools. A new system is a kit here, its schemas below schema/, and a file for each tool that no
// other kit has.
type kit struct {
	tools  []entry
	ends   string // the tool that hands in; an agent cannot do without
	editor string // the tool that edits, for telling a policy what to use in place of bash; "" where bash is all there is
	// observe dresses an observation, fault a call that was not carried out; shape shows how a call looks, "" where the
	// endpoint parses calls.
	observe func(text string) string
	fault   func(why, shape string) string
}

// entry is one tool of a kit.
type entry struct {
	name   string
	schema string // its file below schema/
	build  func(*Config) Tool
}

var kits = map[string]kit{
	KitMilepost: {
		tools: []entry{
			{"search", "milepost/search", func(c *Config) Tool { return search{c} }},
			{"read_file", "milepost/read_file", func(c *Config) Tool { return readFile{c} }},
			{"edit_file", "milepost/edit_file", func(*Config) Tool { return editFile{} }},
			{"execute_bash", "milepost/execute_bash", func(c *Config) Tool { return executeBash{c} }},
			{"submit", "milepost/submit", func(*Config) Tool { return submit{} }},
		},
		ends: "submit", editor: "edit_file", observe: plainly, fault: milepostFault,
	},
	KitBash: {
		tools: []entry{{toolcall.BashTool, "bash/bash", func(c *Config) Tool { return miniBash{c} }}},
		ends:  toolcall.BashTool, observe: plainly, fault: miniFault,
	},
	KitSWEAgent: {
		tools: []entry{
			{"bash", "swe_agent/bash", func(c *Config) Tool { return sweBash{c} }},
			{"str_replace_editor", "str_replace_editor", func(c *Config) Tool { return strReplaceEditor{cfg: c} }},
			{"submit", "swe_agent/submit", func(*Config) Tool { return submit{} }},
		},
		ends: "submit", editor: "str_replace_editor", observe: sweObservation, fault: sweFault,
	},
	KitOpenHands: {
		tools: []entry{
			{"execute_bash", "openhands/execute_bash", func(c *Config) Tool { return handsBash{c} }},
			{"think", "openhands/think", func(*Config) Tool { return think{} }},
			{"finish", "openhands/finish", func(*Config) Tool { return finish{} }},
			{"str_replace_editor", "str_replace_editor", func(c *Config) Tool { return strReplaceEditor{cfg: c, openHands: true} }},
			{"task_tracker", "openhands/task_tracker", func(*Config) Tool { return taskTracker{} }},
		},
		ends: "finish", editor: "str_replace_editor", observe: plainly, fault: handsFault,
	},
}

// Names lists the tools of a kit, in the order in which they are told to a policy; nil for an unknown kit.
func Names(kit string) []string {
	var out []string
	for _, e := range kits[kit].tools {
		out = append(out, e.name)
	}
	return out
}

// entry returns the tool of that name.
func (k kit) entry(name string) (entry, bool) {
	i := slices.IndexFunc(k.tools, func(e entry) bool { return e.name == name })
	if i < 0 {
		return entry{}, false
	}
	return k.tools[i], true
}

// IsShell reports whether a tool, of whatever kit, runs shell commands.
func IsShell(name string) bool { return name == toolcall.BashTool || name == "execute_bash" }

func plainly(text string) string { return text }

func milepostFault(why, shape string) string {
	if shape != "" {
		why += "; a call looks like\n" + shape
	}
	return "error: " + why
}

// miniFault has the sections of mini-swe-agent's format_error_template.
func miniFault(why, shape string) string {
	how := "Call the bash tool with the argument command, once in every response."
	if shape != "" {
		how = "Give exactly one action in triple backticks, as in this example:\n\n<response_example>\nWhat the command is for.\n\n" + shape + "\n</response_example>"
	}
	return "Format error:\n\n<error>\n" + why + "\n</error>\n\n" + how + "\n\nIf the work is done, submit it as the first message says."
}

func sweObservation(text string) string {
	if strings.TrimSpace(text) == "" {
		return "Your command ran successfully and did not produce any output."
	}
	return "OBSERVATION:\n" + text
}

func sweFault(why, shape string) string {
	text := "Your response holds no call that could be carried out: " + why + "\nEvery response makes exactly one tool call."
	if shape != "" {
		text += " A call looks like\n" + shape
	}
	return text
}

func handsFault(why, shape string) string {
	if shape != "" {
		why += "; a call looks like\n" + shape
	}
	return "ERROR:\n" + why + "\n[Error occurred in processing last action]"
}
