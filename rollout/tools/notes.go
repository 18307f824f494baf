package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
)

// think is OpenHands' tool for a thought; it does nothing.
type think struct{}

func (think) Name() string { return "think" }
func (think) Writes() bool { return false }

func (think) Run(context.Context, *Session, json.RawMessage) (Result, error) {
	return Result{Text: "Your thought has been logged."}, nil
}

// finish is OpenHands' way to hand in.
type finish struct{}

func (finish) Name() string { return "finish" }
func (finish) Writes() bool { return false }

func (finish) Run(_ context.Context, _ *Session, args json.RawMessage) (Result, error) {
	var a struct{ Message string }
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: finish", milepost.KindInvalid, err)
	}
	return Result{Text: a.Message, Submit: true}, nil
}

// work is one entry of the task tracker's list.
type work struct{ ID, Title, Status, Notes string }

// taskTracker is OpenHands' list of what is to do; the session keeps it.
type taskTracker struct{}

func (taskTracker) Name() string { return "task_tracker" }
func (taskTracker) Writes() bool { return false }

func (taskTracker) Run(_ context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct {
		Command string
		List    *[]work `json:"task_list"`
	}
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: task_tracker", milepost.KindInvalid, err)
	}
	if a.Command == "plan" {
		if a.List == nil {
			return Result{Text: `ERROR: Missing required parameter "task_list" for command "plan".`}, nil
		}
		s.works = *a.List
		return Result{Text: fmt.Sprintf("Task list has been updated with %d items.", len(s.works))}, nil
	}
	if len(s.works) == 0 {
		return Result{Text: `No task list found. Use the "plan" command to create one.`}, nil
	}
	icons := map[string]string{"todo": "⏳", "in_progress": "🔄", "done": "✅"}
	var b strings.Builder
	b.WriteString("# Task List\n\n")
	for i, w := range s.works {
		fmt.Fprintf(&b, "%d. %s %s\n%s\n", i+1, icons[w.Status], w.Title, w.Notes)
	}
	return Result{Text: b.String()}, nil
}
