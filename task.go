package milepost

import "time"

// TaskKind is what a task asks of the agent.
type TaskKind string

// The kinds of task.
const (
	BugRepair      TaskKind = "bug_repair"      // make failing tests pass and keep the others passing
	RepoGeneration TaskKind = "repo_generation" // write a package against a specification and hidden tests
	OpenTask       TaskKind = "open"            // whatever the statement asks, judged by a verifier of the task's own
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

	// Workdir is where the repository lies inside Image, absolute; "" = the repository is Repo. Where it is set, the task is
	// prepared or not (see Prepared). Before, Repo and BaseTree are "" and BaseCommit is what the data set says of it, or
	// "". Prepared, Image is a digest, BaseTree is all of Workdir after Prepare (files that git ignores included, .git and
	// caches not), and Repo holds it as BaseCommit, a commit without history that the agent starts from.
	Workdir string   `json:"workdir,omitempty"`
	Prepare []string `json:"prepare,omitempty"` // shell commands that bring Workdir to the base state: before the agent, and before grading

	ReferencePatch string   `json:"reference_patch"` // unified diff (git apply) from BaseTree to a solution
	RelevantFiles  []string `json:"relevant_files"`  // files the reference patch modifies or deletes
	Protected      []string `json:"protected"`       // path patterns (doublestar-free: exact file, or "dir/" prefix) the agent may not change

	Test  TestCommand `json:"test"`
	Tests []string    `json:"tests"` // interned test ids, sorted, unique: index i of every TestReport of this task

	FailToPass []string `json:"fail_to_pass"` // the task maker's claim, found by execution; credit uses its own baseline
	PassToPass []string `json:"pass_to_pass"`
	// Flaky are tests of Tests whose state differed between runs on one tree, by the task's certificate. Reports keep them;
	// potentials and the verdict of training do not count them.
	Flaky []string `json:"flaky,omitempty"`

	Grading *Grading `json:"grading,omitempty"` // how a data set judges a patch; nil: Test is run; every test must pass, or, of a RepoGeneration task, the share counts
	Origin  *Origin  `json:"origin,omitempty"`  // the row of a data set the task was imported from; nil for made tasks
	Weight  float64  `json:"weight,omitempty"`  // share of the task in a mixture, relative to the others; 0 = 1

	Meta map[string]string `json:"meta,omitempty"` // difficulty, fault families and the like; never read by credit
}

// Prepared reports whether the base of the task can be had without opening its image. Agents and probes need it;
// grading does not.
func (t *Task) Prepared() bool { return t.Workdir == "" || t.BaseTree != "" }

// ValidSplit reports whether a split is one that a task may be of: train, validation, heldout or none ("").
func ValidSplit(split string) bool {
	switch split {
	case "", "train", "validation", "heldout":
		return true
	}
	return false
}

// Origin names the row of a public data set that a task was imported from. The row itself is kept beside the tasks.
type Origin struct {
	Dataset string `json:"dataset"`        // name of the importer, for example "swe-bench-verified"
	ID      string `json:"id"`             // instance id as the data set spells it
	Repo    string `json:"repo,omitempty"` // upstream repository as the data set spells it, for example "astropy/astropy"
	File    string `json:"file"`           // file of the row, as it was named to the importer
	Row     int    `json:"row"`            // number of the row in that file, from 1
}

// GradeRule is how the outcome of a data set's own test run is judged.
type GradeRule string

// The rules of grading. In all of them the patch is applied to a fresh environment first.
const (
	// GradeStates: the log parser's state of every FAIL_TO_PASS test is PASSED or XFAIL, and no PASS_TO_PASS test is broken.
	GradeStates GradeRule = "states"
	// GradeFailures is GradeStates for parsers that report failures alone: a test without a state has passed.
	GradeFailures GradeRule = "failures"
	// GradeSubset: every test of both lists is in the set of passed tests that the data set's own parser prints.
	GradeSubset GradeRule = "subset"
	// GradeExactSet: the tests that passed, among those of both lists, are exactly these.
	GradeExactSet GradeRule = "exact_set"
	// GradeStatusMap: the map of states equals Grading.Expected.
	GradeStatusMap GradeRule = "status_map"
	// GradeAll: every test of both lists passes in one pytest run.
	GradeAll GradeRule = "all"
	// GradeRate: the reward is the share of Grading.Total tests that passed, at most 1.
	GradeRate GradeRule = "rate"
	// GradeRewardFile: the verifier writes the reward into a file.
	GradeRewardFile GradeRule = "reward_file"
)

// Grading is what a data set's own way of judging needs besides the tests' names. Fields that a data set does not have
// are empty. Nothing of it may be shown to the agent.
type Grading struct {
	Rule      GradeRule         `json:"rule"`
	TestPatch string            `json:"test_patch,omitempty"` // unified diff that brings the judging tests
	Setup     []string          `json:"setup,omitempty"`      // shell commands before the tests, in order
	Commands  []string          `json:"commands,omitempty"`   // shell commands that run the tests, in order
	Script    string            `json:"script,omitempty"`     // whole evaluation script, in place of Setup and Commands
	LogParser string            `json:"log_parser,omitempty"` // name of the parser of the log, as the data set spells it
	TestFiles []string          `json:"test_files,omitempty"` // files or test ids the run is about, as the data set spells them
	Strip     []string          `json:"strip,omitempty"`      // paths removed from the agent's tree before the tests come in
	Hidden    []string          `json:"hidden,omitempty"`     // absolute paths of the image that the agent must not see
	Files     map[string]string `json:"files,omitempty"`      // text files written before the run: path (relative to Workdir, or absolute) to content
	Expected  map[string]string `json:"expected,omitempty"`   // test to wanted state, for GradeStatusMap
	Total     int               `json:"total,omitempty"`      // denominator of GradeRate
	Folder    string            `json:"folder,omitempty"`     // the task's own files (archives, a Dockerfile, a verifier); absolute once loaded
	Archive   string            `json:"archive,omitempty"`    // archive of hidden tests, relative to Folder
	Output    string            `json:"output,omitempty"`     // absolute path in the image that the verifier writes its reward to
}

// TestCommand says how the task's tests are run in the root of the repository.
type TestCommand struct {
	Argv     []string          `json:"argv"`               // for example python3 -m pytest -rA -q
	Format   string            `json:"format"`             // log format in env/testlog: "gotest", "pytest" or "unittest"
	Resident string            `json:"resident,omitempty"` // "unittest": a resident process may run them; "" = a fresh process each time
	Env      map[string]string `json:"env,omitempty"`
	Timeout  time.Duration     `json:"timeout"` // nanoseconds on disk; 0 = the configured default

	// Hidden are files that the tests see and the agent does not: path relative to the root, to content. They are written
	// over the tree's copy before each run, so no tree id, change or reference patch knows them.
	Hidden map[string]string `json:"hidden,omitempty"`
}
