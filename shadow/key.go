package shadow

import (
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// taskPrint is what the prober derives from a task once: its wire form and the part of the cache key that does not depend
// on the tree.
type taskPrint struct {
	task   *milepost.Task // the task it was made of; tasks are not changed once loaded
	body   json.RawMessage
	sum    string
	prefix string
	tests  int
}

// wireTask is the part of a task that running its tests needs. Statement, reference patch and the task maker's claims
// stay home: a worker has no use for them.
func wireTask(t *milepost.Task) *milepost.Task {
	w := &milepost.Task{ID: t.ID, Kind: t.Kind, Repo: t.Repo, BaseCommit: t.BaseCommit, BaseTree: t.BaseTree, Image: t.Image,
		Workdir: t.Workdir, Prepare: t.Prepare, Protected: t.Protected, Test: t.Test, Tests: t.Tests}
	if t.Grading != nil { // its rule speaks of both lists, and parsers go by data set, project and version
		w.Grading, w.FailToPass, w.PassToPass = t.Grading, t.FailToPass, t.PassToPass
		if o := t.Origin; o != nil {
			w.Origin = &milepost.Origin{Dataset: o.Dataset, ID: o.ID, Repo: o.Repo}
		}
		if v := t.Meta["version"]; v != "" {
			w.Meta = map[string]string{"version": v}
		}
	}
	return w
}

// judged is what a task adds to its identity where its repository lies in an image or its data set judges it.
type judged struct {
	Workdir    string
	Prepare    []string
	Grading    *milepost.Grading
	Fail, Pass []string
	Origin     *milepost.Origin
	Meta       map[string]string
}

func newJudged(w *milepost.Task) *judged {
	if w.Workdir == "" && w.Grading == nil {
		return nil
	}
	j := &judged{w.Workdir, w.Prepare, w.Grading, w.FailToPass, w.PassToPass, w.Origin, w.Meta}
	if w.Grading != nil {
		g := *w.Grading
		g.Folder = filepath.Base(g.Folder) // wherever it lies
		j.Grading = &g
	}
	return j
}

func newTaskPrint(t *milepost.Task) (*taskPrint, error) {
	const op = "shadow: task"
	wire := wireTask(t)
	body, err := json.Marshal(wire)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	env := make([]string, 0, len(t.Test.Env))
	for k, v := range t.Test.Env {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	// The time-out is no part of the identity: only completed runs are ever shared.
	ident, err := json.Marshal(struct {
		Image, Format, Resident string
		Argv, Env, Tests        []string
		Hidden                  map[string]string `json:",omitempty"` // JSON sorts the keys
		Judged                  *judged           `json:",omitempty"`
	}{t.Image, t.Test.Format, t.Test.Resident, t.Test.Argv, env, t.Tests, t.Test.Hidden, newJudged(wire)})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	return &taskPrint{task: t, body: body, sum: messages.HashHex(body), prefix: messages.HashHex(ident), tests: len(t.Tests)}, nil
}

// key is the identity of a probe: image, test command, test set and tree. Two requests with one key are one probe. The
// base commit is in no key: a tree says all of the content.
func (p *taskPrint) key(tree string) string {
	return messages.HashHex([]byte(p.prefix + "/" + tree))
}
