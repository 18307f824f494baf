// Package tools holds what an agent can do in a repository, as kits: Milepost's own tools (search, read_file, edit_file,
// execute_bash, submit), and those of mini-swe-agent, SWE-agent and OpenHands by their own names, parameters and wording.
//
// One file per tool or pair of likes and one JSON schema per tool in schema/, embedded. A new tool is a file with a type that
// implements [Tool], a schema, and an entry in the table of kit.go, where a new kit goes too; the configuration chooses the
// subset an agent gets. Where shells of a kit go on from command to command, shellsession.go carries their state. Tools answer the policy's mistakes with an observation; only infrastructure failures and cancellation are errors.
// Observations are short, since small models are trained on them, and deterministic: everything listed is sorted.
//
// Policy on what may be changed (protected paths, git's own data, writes by bash) is not here: the loop compares trees
// after each action, which no tool can get around.
package tools

import (
	"context"
	"encoding/json"
	"io/fs"
	"path"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// Tool is one thing an agent can do. A Tool holds no state of an episode and is safe for concurrent use.
type Tool interface {
	Name() string
	// Writes reports whether the tool can change the workspace, so that the loop takes the tree afterwards.
	Writes() bool
	// Run carries out one call whose arguments met the tool's schema. A mistake of the policy (no such file, no match)
	// is told in Result.Text. An error is either of an infrastructure kind or canceled and ends the episode, or of a kind
	// that the workspace gives for what was asked (invalid, not_found, denied, limit), which [Set.Run] turns into an
	// observation.
	Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error)
}

// Result is what a call came to.
type Result struct {
	Text      string              // the observation
	Exposures []milepost.Exposure // files that Text shows, sorted by path
	Submit    bool                // the agent is done
	// Violation is set where the tool itself refused the call for policy, without carrying it out.
	Violation milepost.Violation
}

// Workspace is what the tools need of a sandbox; *env.Sandbox has it.
type Workspace interface {
	Exec(ctx context.Context, cmd env.Command) (env.Result, error)
	ReadFile(ctx context.Context, path string) ([]byte, fs.FileMode, error)
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	Remove(ctx context.Context, path string) error
	Stat(ctx context.Context, path string) (env.FileInfo, error)
}

// Repository is the state of the repository before the action, as the loop knows it from its last tree.
type Repository interface {
	// Index is the tree: every file, caches left out. The tools only read it.
	Index() repo.Index
	// InBase reports whether the base tree has the file.
	InBase(path string) bool
	// Delta is what differs from the base, sorted by path.
	Delta() []milepost.TreeChange
	// Diff is the unified diff from the base of the files below path, or of everything where path is "".
	Diff(ctx context.Context, path string) (string, error)
}

// Session is what the tools keep during one episode. It belongs to one goroutine.
type Session struct {
	Workspace Workspace
	Repo      Repository
	Root      string // where the commands see the repository, absolute; "" where that is not known

	history []edit     // edits that undo can take back, oldest first
	shell   shellState // of kits whose shell goes on from command to command
	works   []work     // the task tracker's list
}

// Mark is a place in the history of edits.
type Mark struct{ history []edit }

// Mark remembers how far the history of edits has come. It holds until the next call after the one it was taken before.
func (s *Session) Mark() Mark { return Mark{s.history[:len(s.history):len(s.history)]} }

// Rewind goes back to a mark, for an action that was rolled back.
func (s *Session) Rewind(m Mark) { s.history = m.history }

// cleanPath gives the path of a file in the form of the tree, or says in words why it is none.
func cleanPath(p string) (clean, why string) {
	switch {
	case strings.HasPrefix(p, "/"):
		return "", "path must be relative to the repository root: " + p
	case strings.ContainsRune(p, 0):
		return "", "path contains a zero byte"
	}
	clean = path.Clean(p)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", "path leads out of the repository: " + p
	}
	return clean, ""
}

// isGit reports whether a clean path is git's own data of the repository.
func isGit(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return strings.EqualFold(first, ".git")
}

// isDir reports whether the tree has files below the clean path.
func isDir(index repo.Index, p string) bool {
	if p == "." {
		return true
	}
	if _, file := index[p]; file {
		return false
	}
	for f := range index {
		if strings.HasPrefix(f, p+"/") {
			return true
		}
	}
	return false
}
