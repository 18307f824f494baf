package main

import (
	"encoding/json"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
)

// TestTurnsThatWereNotValidAreContextAlone: masked turns stay where they were, what stands behind the last trained one is
// left out, and everything else is trained.
func TestTurnsThatWereNotValidAreContextAlone(t *testing.T) {
	step := func(text string, valid bool) milepost.Step {
		return milepost.Step{Valid: valid, Action: milepost.Action{Text: text}, Observed: "saw " + text}
	}
	ep := &milepost.Episode{ID: "demo/t/0", Steps: []milepost.Step{step("a", true), step("b", false), step("c", true), step("d", false)}}
	opening := []rollout.Message{{Role: rollout.RoleSystem, Content: "s"}, {Role: rollout.RoleUser, Content: "u"}}
	const opened = `{"id":"demo/t/0","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"tool","content":"saw a"},`
	for mask, want := range map[orchestrator.Mask]string{
		orchestrator.MaskNone: opened + `{"role":"assistant","content":"b"},{"role":"tool","content":"saw b"},` +
			`{"role":"assistant","content":"c"},{"role":"tool","content":"saw c"},{"role":"assistant","content":"d"}]}`,
		orchestrator.MaskInvalid: opened + `{"role":"assistant","content":"b","train":false},{"role":"tool","content":"saw b"},{"role":"assistant","content":"c"}]}`,
	} {
		got, err := json.Marshal(conversation(ep, opening, rollout.RoleTool, mask))
		if err != nil || string(got) != want {
			t.Errorf("mask %s: %v\n got %s\nwant %s", mask, err, got, want)
		}
	}
}
