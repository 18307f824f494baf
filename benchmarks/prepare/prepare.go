package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env"
)

// Images gets images onto engines; *docker.Driver is one.
type Images interface {
	// Digest pulls the image where it is missing and returns a reference to exactly it. Kinds: not_found, invalid, denied
	// of the image; unavailable; canceled.
	Digest(ctx context.Context, image string) (string, error)
}

// Preparer prepares task sets.
//
// Invariants: mu guards tasks and summary while workers are under way; a task in the file is either as it was or whole
// prepared, since the file is replaced whole; a base is in the repository of bases before a task in the file names it.
type Preparer struct {
	Env      *env.Env // of a driver with images
	Images   Images
	Jobs     int                                                    // tasks at the same time; at least 1
	Scratch  string                                                 // folder for what is removed again
	Again    bool                                                   // also tasks that are prepared
	Progress func(task string, problem string, done int, total int) // hears of every task, from any goroutine; may be nil

	mu    sync.Mutex
	saved time.Time
}

// Summary is what became of a set.
type Summary struct {
	Tasks    int                  `json:"tasks"`    // in the set
	Prepared int                  `json:"prepared"` // now
	Kept     int                  `json:"kept"`     // prepared before, or with a repository of their own
	Images   int                  `json:"images"`   // different ones among those prepared now
	Bases    int                  `json:"bases"`    // different trees among them
	Problems []benchmarks.Problem `json:"problems"` // tasks that could not be prepared, and why
}

// saveEvery is how often the set is written while it is worked on.
const saveEvery = 30 * time.Second

// Set prepares the tasks of the set in dir, whose file it replaces. What cannot be prepared stays as it was and is among the
// problems. The error is for a set that cannot be read or written, and for cancellation; what was finished is kept.
func (p *Preparer) Set(ctx context.Context, dir string) (sum Summary, err error) {
	const op = "prepare"
	dir, err = filepath.Abs(dir)
	if err != nil {
		return sum, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return sum, milepost.E(op, milepost.KindNotFound, "%s is no folder with a task set; the bases are kept in it", dir)
	}
	tasks, err := benchmarks.Load(dir)
	if err != nil {
		return sum, err
	}
	sum = Summary{Tasks: len(tasks), Problems: []benchmarks.Problem{}}
	var todo []int
	for i, t := range tasks {
		if t.Workdir != "" && (p.Again || !t.Prepared()) {
			todo = append(todo, i)
		}
	}
	sum.Kept = len(tasks) - len(todo)
	if len(todo) == 0 {
		return sum, nil
	}
	bases, err := openHistory(ctx, filepath.Join(dir, BasesFolder))
	if err != nil {
		return sum, err
	}
	if err := p.work(ctx, dir, tasks, todo, bases, &sum); err != nil {
		return sum, err
	}
	return sum, nil
}

// work prepares the tasks of the given places and writes the set, also after an error.
func (p *Preparer) work(ctx context.Context, dir string, tasks []*milepost.Task, todo []int, bases *history, sum *Summary) (err error) {
	p.saved = time.Now()
	images, trees, done := map[string]bool{}, map[string]bool{}, 0
	g, wctx := errgroup.WithContext(ctx)
	g.SetLimit(max(p.Jobs, 1))
	for _, i := range todo {
		g.Go(func() error {
			made, err := p.task(wctx, tasks[i], bases)
			if wctx.Err() != nil {
				return milepost.Wrap("prepare", milepost.KindCanceled, wctx.Err())
			}
			problem := ""
			p.mu.Lock()
			defer p.mu.Unlock()
			if err != nil {
				problem = err.Error()
				sum.Problems = append(sum.Problems, benchmarks.Problem{Task: tasks[i].ID, Reason: problem})
			} else {
				tasks[i] = made
				images[made.Image], trees[made.BaseTree] = true, true
				sum.Prepared, sum.Images, sum.Bases = sum.Prepared+1, len(images), len(trees)
			}
			done++
			if p.Progress != nil {
				p.Progress(tasks[i].ID, problem, done, len(todo))
			}
			if time.Since(p.saved) < saveEvery {
				return nil
			}
			p.saved = time.Now()
			return benchmarks.Save(dir, tasks)
		})
	}
	err = g.Wait()
	return errors.Join(err, benchmarks.Save(dir, tasks))
}
