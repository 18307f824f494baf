package milepost

import "time"

// TaskKind is what a task asks of the agent.
type TaskKind string

// The kinds of task.
const (
	BugRepair      TaskKind = "bug_repair"      // make failing tests pass and keep the others passing
	RepoGeneration TaskKind = "repo_generation" // write a package against a specification and hidden tests
)

// Task is one problem: a repository at a base commit, a statement, and the tests that judge it.
type Task struct {
	ID        string   `json:"id"`
	Kind      TaskKind `json:"kind"`
	Split     string   `json:"split,omitempty"`  // train, validation, heldout or ""
	Source    string   `json:"source,omitempty"` // what made it, for example "micro seed=7 index=3"
	Statement string   `json:"statement"`        // what the agent is told

	Repo       string `json:"repo"`        // git repository; absolute once loaded, relative to the task file on disk
	BaseCommit string `json:"base_commit"` // full commit hash the agent starts from
	BaseTree   string `json:"base_tree"`   // git tree id of BaseCommit
	Image      string `json:"image"`       // environment identity: an image digest, or "local:..." for the local driver

	ReferencePatch string   `json:"reference_patch"` // unified diff (git apply) from BaseTree to a solution
	RelevantFiles  []string `json:"relevant_files"`  // files the reference patch modifies or deletes
	Protected      []string `json:"protected"`       // path patterns (doublestar-free: exact file, or "dir/" prefix) the agent may not change

	Test  TestCommand `json:"test"`
	Tests []string    `json:"tests"` // interned test ids, sorted, unique: index i of every TestReport of this task

	FailToPass []string `json:"fail_to_pass"` // the task maker's claim, found by execution; credit uses its own baseline
	PassToPass []string `json:"pass_to_pass"`

	Meta map[string]string `json:"meta,omitempty"` // difficulty, fault families and the like; never read by credit
}

// TestCommand says how the task's tests are run in the root of the repository.
type TestCommand struct {
	Argv     []string          `json:"argv"`               // for example python3 -m pytest -rA -q
	Format   string            `json:"format"`             // log format in env/testlog: "pytest" or "unittest"
	Resident string            `json:"resident,omitempty"` // "unittest": a resident process may run them; "" = a fresh process each time
	Env      map[string]string `json:"env,omitempty"`
	Timeout  time.Duration     `json:"timeout"` // nanoseconds on disk; 0 = the configured default
}
