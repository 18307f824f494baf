package trajectories

import (
	"encoding/json"
	"fmt"
)

// sweAgent is SWE-agent's INSTANCE.traj: an object of history (the messages), trajectory (the steps) and info.
var sweAgent = Format{
	Name: "swe-agent", About: "an object of history, trajectory and info, as in a .traj file",
	is:   func(r record) bool { return r.has("history", "trajectory") },
	read: readSWEAgent,
}

func readSWEAgent(r record) (out recorded, err error) {
	if out.task, err = r.text("instance_id"); err != nil {
		return out, err
	}
	if out.task == "" {
		out.task = stem(r.file)
	}
	out.id = out.task
	if r.has("info") {
		var info struct {
			Exit json.RawMessage `json:"exit_status"`
		}
		if err := r.decode("info", &info); err != nil {
			return out, err
		}
		_ = json.Unmarshal(info.Exit, &out.exit) // a number or null says nothing
	}
	if out.resolved, err = r.truth("resolved"); err != nil {
		return out, err
	}
	var raw []struct {
		chatMessage
		IsDemo  bool     `json:"is_demo"`
		CallIDs []string `json:"tool_call_ids"`
		Agent   string   `json:"agent"`
	}
	if err := r.decode("history", &raw); err != nil {
		return out, err
	}
	for i, m := range raw {
		if m.IsDemo {
			continue
		}
		if len(m.CallIDs) > 0 {
			m.CallID = m.CallIDs[0]
		}
		one, err := chatMessages([]chatMessage{m.chatMessage}, "history")
		if err != nil {
			return out, err
		}
		one[0].at = fmt.Sprintf("history[%d]", i)
		out.messages = append(out.messages, one...)
	}
	return out, nil
}
