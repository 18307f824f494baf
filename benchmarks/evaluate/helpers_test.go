package evaluate

import (
	"fmt"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/rollout"
)

func tasksOf(n int) []*milepost.Task {
	out := make([]*milepost.Task, n)
	for i := range out {
		out[i] = &milepost.Task{ID: fmt.Sprintf("t%02d", i), Kind: milepost.BugRepair, Source: "micro seed=1", Statement: "fix", BaseCommit: "c",
			FailToPass: []string{"f"}, PassToPass: []string{"p", "q"}, Tests: []string{"f", "p", "q"}}
	}
	return out
}

func recordOf(task string, attempt int, resolved bool) Record {
	rate := .5
	return Record{ID: AttemptID(task, attempt), Task: task, Attempt: attempt, Outcome: map[bool]string{true: "resolved", false: "unresolved"}[resolved], Resolved: resolved,
		Score: indicator(resolved), PassRate: &rate, Turns: 3, Usage: &rollout.Usage{Prompt: 1000, Completion: 100, Cached: 400}, Wall: 2 * time.Second, PatchBytes: 10,
		Report: &predictions.Instance{PatchExists: true, Resolved: resolved}}
}

func startOf(tasks []*milepost.Task, n int) Start {
	print, _, err := Fingerprint(tasks)
	if err != nil {
		panic(err)
	}
	return Start{Identity: Identity{Model: "m", Dataset: Dataset{Source: "set", Tasks: len(tasks), Fingerprint: print}}, Attempts: n}
}
