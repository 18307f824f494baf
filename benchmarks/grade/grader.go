package grade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// Names of the files of a graded prediction, in OUT/<model>/<task>/; the first three are SWE-bench's.
const (
	reportFile  = "report.json"      // {instance id: report}, where SWE-bench's harness would write one
	logFile     = "test_output.txt"  // what the evaluation printed
	patchFile   = "patch.diff"       // the prediction's patch
	scriptFile  = "eval.sh"          // the evaluation, with the repository's place in the task's image
	verdictFile = "verdict.json"     // the Verdict, written last
	ReportEnd   = ".milepost.json"   // OUT/<model>.milepost.json: RunReport
	lockFile    = ".milepost.lock"   // held by the one grader at work in OUT
	keyVersion  = "milepost grade 1" // changes when kept verdicts may not be taken over any more
)

// Grader grades predictions into a folder.
//
// Invariants: a prediction is graded by one worker at a time, in a sandbox of its own. verdict.json is written last and by rename,
// so what is found is whole; a kept verdict is taken over only if its key, the hash of task and patch, is that of today. An
// infrastructure failure leaves no verdict.json: the next start grades again. One grader at a time works in a folder.
type Grader struct {
	Executor *Executor
	Out      string
	Workers  int                                          // gradings at the same time; at least 1
	Attempts int                                          // at one grading, where infrastructure fails; at least 1
	Progress func(v *Verdict, kept bool, done, total int) // hears of every verdict, from any goroutine; may be nil

	mu   sync.Mutex
	done int
}

// job is one prediction with its task.
type job struct {
	task *milepost.Task
	pred *predictions.Prediction
	dir  string
}

// Grade grades every prediction that has a task and returns the reports by model, which it has also written. Predictions
// of instances that the set does not have count as submitted and nothing else. Infrastructure failures are in the
// reports, not in the error, which is for a folder or task that cannot be used (KindInvalid, KindConflict, KindUnavailable) and for
// cancellation; what was finished before is kept.
func (g *Grader) Grade(ctx context.Context, tasks []*milepost.Task, preds []predictions.Prediction) (map[string]*RunReport, error) {
	unlock, err := g.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	ids, jobs, err := g.plan(tasks, preds)
	if err != nil {
		return nil, err
	}
	all := make([]*Verdict, len(jobs))
	g.done = 0
	workers, wctx := errgroup.WithContext(ctx)
	workers.SetLimit(max(g.Workers, 1))
	for i, j := range jobs {
		workers.Go(func() (err error) {
			all[i], err = g.one(wctx, j, len(jobs))
			return err
		})
	}
	if err := workers.Wait(); err != nil {
		return nil, err
	}
	submitted, verdicts := map[string][]predictions.Prediction{}, map[string][]*Verdict{}
	for _, p := range preds {
		submitted[p.Model] = append(submitted[p.Model], p)
	}
	for _, v := range all {
		verdicts[v.Model] = append(verdicts[v.Model], v)
	}
	reports := map[string]*RunReport{}
	for model, of := range submitted {
		reports[model] = Summarise(ids, of, verdicts[model])
		if err := writeJSON(filepath.Join(g.Out, ModelFolder(model)+ReportEnd), reports[model]); err != nil {
			return nil, err
		}
	}
	return reports, nil
}

// plan checks tasks and predictions before anything runs and pairs them; ids are those of all tasks.
func (g *Grader) plan(tasks []*milepost.Task, preds []predictions.Prediction) (ids []string, jobs []job, err error) {
	const op = "grade: plan"
	byID := make(map[string]*milepost.Task, len(tasks))
	for _, t := range tasks {
		if _, err := ruleOf(t); err != nil {
			return nil, nil, err
		}
		id := InstanceID(t)
		if other, twice := byID[id]; twice {
			return nil, nil, milepost.E(op, milepost.KindInvalid, "tasks %s and %s are both instance %q", other.ID, t.ID, id)
		}
		byID[id], ids = t, append(ids, id)
	}
	folders := map[string]string{}
	for i := range preds {
		p := &preds[i]
		folder := ModelFolder(p.Model)
		if other, ok := folders[folder]; ok && other != p.Model {
			return nil, nil, milepost.E(op, milepost.KindInvalid, "models %q and %q would share the folder %s", other, p.Model, folder)
		}
		folders[folder] = p.Model
		if t, ok := byID[p.InstanceID]; ok {
			jobs = append(jobs, job{t, p, filepath.Join(g.Out, folder, t.ID)})
		}
	}
	return ids, jobs, nil
}

// lock makes the folder and takes it.
func (g *Grader) lock() (func(), error) {
	const op = "grade: open folder"
	if err := os.MkdirAll(g.Out, 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	f, err := os.OpenFile(filepath.Join(g.Out, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, milepost.E(op, milepost.KindConflict, "another grader is at work in %s", g.Out)
	}
	return func() { f.Close() }, nil
}

// one returns the verdict of a job: the kept one where it is still its own, else a new one.
func (g *Grader) one(ctx context.Context, j job, total int) (*Verdict, error) {
	key, err := keyOf(j.task, j.pred.Patch)
	if err != nil {
		return nil, err
	}
	v, note := kept(j.dir, key)
	if v != nil {
		v.Model = j.pred.Model
		g.tell(v, true, total)
		return v, nil
	}
	for attempt := 1; ; attempt++ {
		v, err = g.grade(ctx, j)
		if ctx.Err() != nil {
			return nil, milepost.Wrap("grade", milepost.KindCanceled, ctx.Err())
		}
		if err == nil {
			break
		}
		if !milepost.KindOf(err).Infra() {
			return nil, milepost.E("grade", milepost.KindOf(err), "instance %s: %w", j.pred.InstanceID, err)
		}
		if attempt >= g.Attempts {
			v = &Verdict{InstanceID: j.pred.InstanceID, Outcome: Infrastructure, Reason: fmt.Sprintf("after %d attempts: %v", attempt, err)}
			break
		}
	}
	v.Model, v.Key = j.pred.Model, key
	if note != "" {
		v.Notes = append(v.Notes, note)
	}
	if v.Outcome != Infrastructure {
		if err := keep(j.dir, v); err != nil {
			return nil, err
		}
	}
	g.tell(v, false, total)
	return v, nil
}

func (g *Grader) tell(v *Verdict, kept bool, total int) {
	g.mu.Lock()
	g.done++
	n := g.done
	g.mu.Unlock()
	if g.Progress != nil {
		g.Progress(v, kept, n, total)
	}
}

// grade runs and judges one prediction in its emptied folder.
func (g *Grader) grade(ctx context.Context, j job) (*Verdict, error) {
	const op = "grade: prepare folder"
	if err := os.RemoveAll(j.dir); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := os.MkdirAll(j.dir, 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if j.pred.Patch != nil && *j.pred.Patch != "" {
		root := j.task.Workdir
		if root == "" {
			root = "/workspace"
		}
		for name, text := range map[string]string{patchFile: *j.pred.Patch, scriptFile: Script(j.task, root)} {
			if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o644); err != nil {
				return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
			}
		}
	}
	ev, err := g.Executor.Run(ctx, j.task, j.pred.Patch, filepath.Join(j.dir, logFile))
	if err != nil {
		return nil, err
	}
	if ev.Patch != nil {
		for _, name := range addsStartup(*ev.Patch) {
			ev.Notes = append(ev.Notes, "the patch adds "+name)
		}
	}
	return Judge(j.task, ev)
}

// keyOf is the hash of what a verdict depends on: the task, wherever its files lie, and the patch. Of the files in
// Grading.Folder only the folder's name counts: importers write them once.
func keyOf(t *milepost.Task, patch *string) (string, error) {
	c := *t
	c.Repo = ""
	if t.Grading != nil {
		grading := *t.Grading
		grading.Folder = filepath.Base(grading.Folder)
		c.Grading = &grading
	}
	b, err := json.Marshal([]any{keyVersion, &c, patch})
	if err != nil {
		return "", milepost.Wrap("grade: hash task", milepost.KindInternal, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// kept is the verdict that a folder holds, if it is whole and of this key; note says why one that is there does not count.
func kept(dir, key string) (v *Verdict, note string) {
	data, err := os.ReadFile(filepath.Join(dir, verdictFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ""
	}
	if err != nil {
		return nil, "the kept verdict could not be read: " + err.Error()
	}
	v = &Verdict{}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, "the kept verdict was damaged: " + err.Error()
	}
	if v.Key != key {
		return nil, "graded anew: task or patch had changed"
	}
	return v, ""
}

// keep writes the report and, last, the verdict.
func keep(dir string, v *Verdict) error {
	if v.Outcome.Judged() {
		if err := writeJSON(filepath.Join(dir, reportFile), map[string]predictions.Instance{v.InstanceID: v.Report()}); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(dir, verdictFile), v)
}

// writeJSON writes a file whole or not at all.
func writeJSON(path string, v any) error {
	const op = "grade: write"
	b, err := indented(v)
	if err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	return milepost.Wrap(op, milepost.KindUnavailable, benchmarks.WriteWhole(path, b))
}
