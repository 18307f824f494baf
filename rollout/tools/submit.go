package tools

import (
	"context"
	"encoding/json"
)

// submit ends the episode with the repository as it is.
type submit struct{}

func (submit) Name() string { return "submit" }
func (submit) Writes() bool { return false }

func (submit) Run(context.Context, *Session, json.RawMessage) (Result, error) {
	return Result{Text: "submitted", Submit: true}, nil
}
