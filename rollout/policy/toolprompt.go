package policy

import (
	"encoding/json"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout"
)

// specs turns tool descriptions into the server's form.
func specs(tools []rollout.ToolSpec) []vllm.Tool {
	out := make([]vllm.Tool, len(tools))
	for i, t := range tools {
		out[i] = vllm.Tool{Name: t.Name, Description: t.Description, Parameters: t.Parameters}
	}
	return out
}

// describeTools is the text that tells a model of its tools where its chat template does not. How a call is written is
// the scaffold's system prompt's to say.
func describeTools(tools []rollout.ToolSpec) (string, error) {
	var b strings.Builder
	b.WriteString("# Tools\n\n<tools>")
	for _, t := range specs(tools) {
		line, err := json.Marshal(t)
		if err != nil {
			return "", milepost.E("policy: describe tools", milepost.KindInvalid, "tool %s: %w", t.Name, err)
		}
		b.WriteString("\n")
		b.Write(line)
	}
	b.WriteString("\n</tools>")
	return b.String(), nil
}

// withTools puts the description behind the system message, or makes one.
func withTools(messages []rollout.Message, tools []rollout.ToolSpec) ([]rollout.Message, error) {
	if len(tools) == 0 {
		return messages, nil
	}
	text, err := describeTools(tools)
	if err != nil {
		return nil, err
	}
	if len(messages) > 0 && messages[0].Role == rollout.RoleSystem {
		first := rollout.Message{Role: rollout.RoleSystem, Content: messages[0].Content + "\n\n" + text}
		return append([]rollout.Message{first}, messages[1:]...), nil
	}
	return append([]rollout.Message{{Role: rollout.RoleSystem, Content: text}}, messages...), nil
}
