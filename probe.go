package milepost

import "time"

// ProbeStatus says how a probe ended.
type ProbeStatus string

// The ends of a probe. Only completed can be trusted.
const (
	ProbeCompleted ProbeStatus = "completed"
	ProbeTimeout   ProbeStatus = "timeout"   // the tests ran past their time
	ProbeMemory    ProbeStatus = "memory"    // the tests ran past their memory
	ProbeTreeWrong ProbeStatus = "tree"      // the rebuilt tree did not have the asked id
	ProbeLate      ProbeStatus = "late"      // not back when the batch barrier closed
	ProbeInfra     ProbeStatus = "infra"     // worker, sandbox or transport failed for good
	ProbeUnparsed  ProbeStatus = "unparsed"  // the run ended but its output gave no test states
	ProbeCancelled ProbeStatus = "cancelled" // the episode was cancelled; nobody will read it
)

// Continuity says whether the chain of states is intact after an untrusted probe (credit: "Untrusted probes").
type Continuity string

// The continuities; ignored on a trusted probe.
const (
	ContinuityKept Continuity = "kept" // the next trusted probe earns the whole change since
	ContinuityLost Continuity = "lost" // freezes the potential
)

// Probe is a run of the task's tests on the repository state after a step, or, as a baseline, on the untouched tree.
type Probe struct {
	ID         string      `json:"id,omitempty"`
	Tree       string      `json:"tree,omitempty"` // git tree id that was proven and tested
	Status     ProbeStatus `json:"status"`
	Trusted    bool        `json:"trusted"` // completed, tree proven, test ids exactly the task's
	Reason     string      `json:"reason,omitempty"`
	Continuity Continuity  `json:"continuity,omitempty"`
	Report     TestReport  `json:"report,omitempty"`    // dense over Task.Tests; nil where only counts are known
	Partition  *Partition  `json:"partition,omitempty"` // instead of Report, for runners that give counts only
	Merge      *Merge      `json:"merge,omitempty"`
	Reanchored bool        `json:"reanchored,omitempty"`

	Cached  bool          `json:"cached,omitempty"`
	Worker  string        `json:"worker,omitempty"`
	Attempt int           `json:"attempt,omitempty"`
	Queued  time.Duration `json:"queued,omitempty"` // from publish to a worker taking it
	Ran     time.Duration `json:"ran,omitempty"`    // tree rebuild and tests
	Total   time.Duration `json:"total,omitempty"`  // from publish to result
}

// Partition holds test counts per side of the baseline for a runner that reports no single tests.
type Partition struct {
	F2P PartitionCounts `json:"f2p"`
	P2P PartitionCounts `json:"p2p"`
}

// PartitionCounts are the counts of one side; their sum is not checked.
type PartitionCounts struct {
	Expected int `json:"expected"`
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	Errors   int `json:"errors"`
	Skipped  int `json:"skipped"`
	NotRun   int `json:"not_run"`
}

// ProbeKind says what a probe is for.
type ProbeKind string

// The kinds of probe, in the order in which a queue serves them.
const (
	ProbeBaseline ProbeKind = "baseline" // the untouched tree
	ProbeVerdict  ProbeKind = "verdict"  // the final tree of an episode: its grade
	ProbeStep     ProbeKind = "step"     // the tree after a step
)

// TreeChange is one file of a tree that differs from the base tree. Its bytes live in a blob store under Blob.
type TreeChange struct {
	Path    string `json:"path"`              // relative to the repository root, slash separated
	Mode    uint32 `json:"mode,omitempty"`    // git mode: 0100644, 0100755 or 0120000
	Blob    string `json:"blob,omitempty"`    // git blob id, 40 hex digits
	Deleted bool   `json:"deleted,omitempty"` // the base has it, the tree has not; Mode and Blob are empty
}

// ProbeRequest asks for one probe. It is stateless: base tree, wanted tree and the whole difference between them, so
// any worker can serve it, in any order, twice without harm.
type ProbeRequest struct {
	ID      string       `json:"id"` // unique within a run: "<episode>/<step>", "<episode>/verdict" or "<task>/baseline"
	Kind    ProbeKind    `json:"kind"`
	Task    *Task        `json:"task"`
	Episode string       `json:"episode,omitempty"`
	Step    int          `json:"step"`
	Tree    string       `json:"tree"`            // git tree id that the worker must prove before it tests
	Delta   []TreeChange `json:"delta,omitempty"` // sorted by path; from Task.BaseTree to Tree
}

// Merge marks a probe shared by Size consecutive steps; this is part Index (from 0).
type Merge struct {
	ID    string `json:"id"`
	Size  int    `json:"size"`
	Index int    `json:"index"`
}
