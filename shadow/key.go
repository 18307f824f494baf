package shadow

import (
	"encoding/json"
	"slices"

	"github.com/milepost-rl/milepost"
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
	return &milepost.Task{ID: t.ID, Kind: t.Kind, Repo: t.Repo, BaseCommit: t.BaseCommit, BaseTree: t.BaseTree, Image: t.Image,
		Protected: t.Protected, Test: t.Test, Tests: t.Tests}
}

func newTaskPrint(t *milepost.Task) (*taskPrint, error) {
	const op = "shadow: task"
	body, err := json.Marshal(wireTask(t))
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
	}{t.Image, t.Test.Format, t.Test.Resident, t.Test.Argv, env, t.Tests, t.Test.Hidden})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	return &taskPrint{task: t, body: body, sum: hashHex(body), prefix: hashHex(ident), tests: len(t.Tests)}, nil
}

// key is the identity of a probe: image, test command, test set and tree. Two requests with one key are one probe. The
// base commit is in no key: a tree says all of the content.
func (p *taskPrint) key(tree string) string {
	return hashHex([]byte(p.prefix + "/" + tree))
}
