package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/dataset"
	"github.com/milepost-rl/milepost/benchmarks/grade"
)

// evalTasks loads the tasks of an evaluation; a data set is imported into the evaluation's folder, once. Nobody can have
// validated that, so its tasks are taken without certificates.
func evalTasks(ctx context.Context, o evalOptions, trust benchmarks.Trust, dir string, p *progress) ([]*milepost.Task, error) {
	set := o.Tasks
	if !isTaskSet(set) {
		set, trust = filepath.Join(dir, "tasks"), benchmarks.TrustIgnore
		if _, err := os.Stat(filepath.Join(set, benchmarks.TasksFile)); err != nil {
			if err := importInto(ctx, o.Tasks, set, p); err != nil {
				return nil, err
			}
		}
	}
	tasks, err := loadCertified(set, trust, p)
	if err != nil {
		return nil, err
	}
	if tasks, err = chooseTasks(tasks, o.IDs); err != nil {
		return nil, err
	}
	if o.Limit > 0 && len(tasks) > o.Limit {
		tasks = tasks[:o.Limit]
	}
	return tasks, nil
}

// isTaskSet tells Milepost's own task sets from data sets: a folder with a tasks file, or such a file. What does not exist
// is taken for one, so that the error names it.
func isTaskSet(path string) bool {
	if strings.HasPrefix(path, dataset.HubScheme) {
		return false
	}
	info, err := os.Stat(path)
	if err != nil {
		return true
	}
	if info.IsDir() {
		_, err := os.Stat(filepath.Join(path, benchmarks.TasksFile))
		return err == nil
	}
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 1<<20).ReadBytes('\n')
	if err != nil && len(line) == 0 || !bytes.HasPrefix(bytes.TrimSpace(line), []byte("{")) {
		return false
	}
	var own struct {
		ID        *string `json:"id"`
		Statement *string `json:"statement"`
	}
	return json.Unmarshal(line, &own) == nil && own.ID != nil && own.Statement != nil
}

// importInto imports a data set, as `milepost tasks import` does without options.
func importInto(ctx context.Context, from, out string, p *progress) error {
	hub, err := newHub("")
	if err != nil {
		return err
	}
	sum, err := dataset.Import(ctx, dataset.Options{From: from, Out: out, Hub: hub})
	if err != nil {
		return err
	}
	p.line("imported %d tasks of %s", sum.Tasks, from)
	return nil
}

// newHub is the hub of data sets as the environment says; cache is the folder of downloads, "" = the user's.
func newHub(cache string) (*dataset.Hub, error) {
	cache, err := userCache(cache, "datasets", "--cache")
	if err != nil {
		return nil, err
	}
	return &dataset.Hub{Endpoint: os.Getenv("HF_ENDPOINT"), Token: os.Getenv("HF_TOKEN"), Cache: cache}, nil
}

// chooseTasks keeps the tasks of the given ids, as Milepost or the data set spells them, in the set's order; all without
// ids. One that is not there is an error.
func chooseTasks(tasks []*milepost.Task, ids []string) ([]*milepost.Task, error) {
	if len(ids) == 0 {
		return tasks, nil
	}
	var out []*milepost.Task
	found := map[string]bool{}
	for _, t := range tasks {
		for _, id := range []string{t.ID, grade.InstanceID(t)} {
			if slices.Contains(ids, id) && (len(out) == 0 || out[len(out)-1] != t) {
				out = append(out, t)
			}
			found[id] = true
		}
	}
	for _, id := range ids {
		if !found[id] {
			return nil, &usageError{errors.New("--ids: the task set has no task " + id)}
		}
	}
	return out, nil
}
