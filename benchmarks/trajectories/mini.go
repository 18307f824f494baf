package trajectories

import (
	"encoding/json"
	"fmt"
	"strings"
)

// miniSWEAgent is the record of mini-swe-agent: NAME.traj.json, an object of info, messages and trajectory_format
// (mini-swe-agent-1, -1.1), of version 1 (text) and 2 (tool calls).
var miniSWEAgent = Format{
	Name: "mini-swe-agent", About: "an object of messages, info and trajectory_format mini-swe-agent-...",
	is: func(r record) bool {
		form, err := r.text("trajectory_format")
		return err == nil && strings.HasPrefix(form, "mini-swe-agent") && r.has("messages")
	},
	read: readMini,
}

func readMini(r record) (out recorded, err error) {
	out.task, err = r.text("instance_id")
	if err != nil {
		return out, err
	}
	if out.task == "" {
		out.task = stem(r.file)
	}
	out.id = out.task
	if out.exit, err = r.text("exit_status"); err != nil {
		return out, err
	}
	if out.resolved, err = r.truth("resolved"); err != nil {
		return out, err
	}
	if r.has("info") {
		var info struct {
			Exit *string `json:"exit_status"`
		}
		if err := r.decode("info", &info); err != nil {
			return out, err
		}
		if info.Exit != nil {
			out.exit = *info.Exit
		}
	}
	var raw []struct {
		chatMessage
		Extra struct {
			Interrupt string          `json:"interrupt_type"`
			Exception json.RawMessage `json:"exception_info"`
		} `json:"extra"`
	}
	if err := r.decode("messages", &raw); err != nil {
		return out, err
	}
	for i, m := range raw {
		if m.Role == "exit" { // the agent's own note of how it ended, which no model sees
			continue
		}
		one, err := chatMessages([]chatMessage{m.chatMessage}, "messages")
		if err != nil {
			return out, err
		}
		one[0].at = fmt.Sprintf("messages[%d]", i)
		if one[0].role != "assistant" && m.Extra.Interrupt == "FormatError" {
			one[0].fault = "the answer was a format error"
		}
		out.messages = append(out.messages, one...)
	}
	return out, nil
}
