package testrun

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testlog"
)

//go:embed resident.py
var residentProgram string

// request and answer are the lines that travel to and from resident.py, which documents them.
type request struct {
	Nonce       string            `json:"nonce"`
	Dir         string            `json:"dir"`
	Args        []string          `json:"args"`
	Tests       []string          `json:"tests"`
	Env         map[string]string `json:"env"`
	Timeout     float64           `json:"timeout"` // seconds
	LogBytes    int64             `json:"log_bytes"`
	ResultBytes int64             `json:"result_bytes"`
}

type answer struct {
	Ready     bool    `json:"ready"`
	Nonce     string  `json:"nonce"`
	Results   string  `json:"results"`
	Log       string  `json:"log"`
	Truncated bool    `json:"truncated"`
	Timeout   bool    `json:"timeout"`
	Ended     bool    `json:"ended"`
	Exit      int     `json:"exit"`
	Signal    int     `json:"signal"`
	Seconds   float64 `json:"seconds"`
}

// resultBytes returns how much of a child's results is kept: four times what the task's tests can take.
func resultBytes(tests []string) int64 {
	n := int64(64 << 10)
	for _, id := range tests {
		n += 4 * int64(len(id)+64)
	}
	return n
}

// errDied marks the failure of a resident process that may be the tested code's doing: it ended or went silent.
var errDied = errors.New("the resident process died")

// resident runs the tests in a resident process. One that dies under a run is replaced and the run repeated; a run under
// which two die (the tested code kills or stops its parent) gets a process of its own, which has no such parent.
func (r *Runner) resident(ctx context.Context, task *milepost.Task, base *repo.Base, changes overlay) (Outcome, error) {
	for range 2 {
		out, err := r.residentOnce(ctx, task, base, changes)
		if !errors.Is(err, errDied) || ctx.Err() != nil {
			return out, err
		}
	}
	out, err := r.fresh(ctx, task, base, changes)
	if err == nil && out.Reason == "" {
		out.Reason = "ran in a process of its own: two resident processes died under these tests"
	}
	return out, err
}

func (r *Runner) residentOnce(ctx context.Context, task *milepost.Task, base *repo.Base, changes overlay) (out Outcome, err error) {
	s, err := r.pool.get(ctx, task.Image)
	if err != nil {
		return Outcome{}, err
	}
	keep := false
	defer func() { err = errors.Join(err, r.pool.put(s, keep)) }()

	s.uses++
	name := strconv.Itoa(s.uses)
	dir := filepath.Join(s.trees, name)
	defer func() {
		if s.empty() != nil {
			keep = false // the slot's end removes the directory, or says why not
		}
	}()
	if err := repo.Materialise(ctx, base, changes.delta, changes.blobs(r.blobs), dir); err != nil {
		keep = true
		return Outcome{}, err
	}
	timeout := r.timeout(task)
	ans, err := s.ask(ctx, request{
		Dir: s.inside + "/" + name, Args: unittestArgs(task.Test.Argv), Tests: nonNil(task.Tests), Env: task.Test.Env,
		Timeout: timeout.Seconds(), LogBytes: r.cfg.LogBytes, ResultBytes: resultBytes(task.Tests),
	}, timeout+r.cfg.Grace)
	if errors.Is(err, errDied) && ctx.Err() == nil && s.outOfMemory() {
		return Outcome{Status: milepost.ProbeMemory, Reason: "the tests ran out of memory"}, nil
	}
	if err != nil {
		return Outcome{}, err
	}
	out, err = conclude(ans, task, timeout)
	// The counter of out-of-memory kills can be read only when the process has ended.
	if killed := ans.Signal == 9 && !ans.Timeout; killed && err == nil && s.outOfMemory() {
		return Outcome{Status: milepost.ProbeMemory, Log: out.Log, Reason: "the tests ran out of memory"}, nil
	} else if !killed {
		keep = err == nil
	}
	return out, err
}

// conclude makes the outcome of an answer. Tests that a process left out by ending early are NotRun: that is what the
// tested code did, and the run is complete.
func conclude(ans answer, task *milepost.Task, timeout time.Duration) (Outcome, error) {
	out := Outcome{Log: []byte(ans.Log)}
	if ans.Timeout {
		out.Status, out.Reason = milepost.ProbeTimeout, "the tests ran past "+timeout.String()
		return out, nil
	}
	report, extra, err := testlog.Parse("resident", []byte(ans.Results), task.Tests)
	if err != nil {
		return Outcome{}, err
	}
	out.Status, out.Report, out.Extra = milepost.ProbeCompleted, report, extra
	switch {
	case ans.Signal != 0:
		out.Reason = fmt.Sprintf("the test process was ended by signal %d", ans.Signal)
	case !ans.Ended:
		out.Reason = fmt.Sprintf("the test process ended early with exit code %d", ans.Exit)
	}
	return out, nil
}

// unittestArgs returns what follows "-m unittest" in argv, not nil where that is there.
func unittestArgs(argv []string) []string {
	for i := range argv {
		if i > 0 && argv[i-1] == "-m" && argv[i] == "unittest" {
			return nonNil(slices.Clone(argv[i+1:]))
		}
	}
	return nil
}

// nonNil makes a nil slice an empty one, which JSON writes as [].
func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
