package certify

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/env"
)

// Certifier writes certificates.
//
// Invariants: a task is checked by one worker, each run in a sandbox of its own. A certificate is on disk before the next
// task of its worker begins, so a validation that is killed does none of them again; what is on disk is whole. A task that
// cannot be checked keeps its old certificate, or none, and stops no other.
type Certifier struct {
	Checker  *benchmarks.Checker // runs both sides, each time in a fresh sandbox
	Judge    benchmarks.Runner   // finds verdicts as training does, resident processes included; nil: Checker's
	Env      *env.Env            // of the agent's view
	Executor *grade.Executor     // of tasks that a data set's rule judges
	Limits   env.Limits          // of the agent's view
	Dir      string              // for logs, which do not stay
	Workers  int                 // tasks at the same time; at least 1
	// Digest is the content address of an image, "" where it has none; nil where the driver knows of none.
	Digest func(ctx context.Context, image string) (string, error)
	// Progress hears of every task: its certificate, or why there is none, and whether it was valid already. From any
	// goroutine; may be nil.
	Progress func(t *milepost.Task, cert *benchmarks.Certificate, err error, kept bool, done, total int)
}

// Result says what a validation came to.
type Result struct {
	Certificates map[string]*benchmarks.Certificate // by task: all that are valid
	Kept         int                                // of them, those that were valid before
	Failed       []benchmarks.Problem               // tasks that could not be checked, in the order of the set
}

// Set checks every task of a set that has no valid certificate with all checks and n or more runs, and writes what it
// finds beside the set. A task that fails for infrastructure is in Result.Failed; the next call tries it again. The error
// is for a set that cannot be read or written, and for cancellation; what was done before is kept.
func (c *Certifier) Set(ctx context.Context, set string, n int) (*Result, error) {
	tasks, err := benchmarks.Load(set)
	if err != nil {
		return nil, err
	}
	old, err := benchmarks.LoadCertificates(set)
	if err != nil {
		return nil, err
	}
	r := &Result{Certificates: map[string]*benchmarks.Certificate{}}
	for _, t := range tasks {
		keep, err := c.valid(ctx, old[t.ID], t, n)
		if err != nil {
			return nil, err
		}
		if keep {
			r.Certificates[t.ID] = old[t.ID]
			r.Kept++
		}
	}
	failed, err := c.rest(ctx, set, tasks, n, r)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(r.Certificates)
	for i, err := range failed {
		if t := tasks[i]; err != nil {
			r.Failed = append(r.Failed, benchmarks.Problem{Task: t.ID, Reason: err.Error()})
			if old[t.ID] != nil {
				all[t.ID] = old[t.ID]
			}
		}
	}
	return r, benchmarks.SaveCertificates(set, all)
}

// rest checks the tasks that r has no certificate of and adds theirs; failed says, by task, why there is none.
func (c *Certifier) rest(ctx context.Context, set string, tasks []*milepost.Task, n int, r *Result) (failed []error, err error) {
	log, err := benchmarks.OpenCertificateLog(set)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	failed = make([]error, len(tasks))
	kept := maps.Clone(r.Certificates)
	var mu sync.Mutex // of r.Certificates and log
	var done atomic.Int64
	workers, wctx := errgroup.WithContext(ctx)
	workers.SetLimit(max(c.Workers, 1))
	for i, t := range tasks {
		if cert := kept[t.ID]; cert != nil {
			c.tell(t, cert, nil, true, int(done.Add(1)), len(tasks))
			continue
		}
		workers.Go(func() error {
			cert, err := c.Task(wctx, t, n)
			if wctx.Err() != nil {
				return milepost.Wrap("certify", milepost.KindCanceled, wctx.Err())
			}
			if failed[i] = err; err == nil {
				mu.Lock()
				r.Certificates[t.ID] = cert
				err = log.Add(cert)
				mu.Unlock()
				if err != nil {
					return err
				}
			}
			c.tell(t, cert, failed[i], false, int(done.Add(1)), len(tasks))
			return nil
		})
	}
	return failed, workers.Wait()
}

// valid reports whether a task's certificate is still its own and says all that is asked for.
func (c *Certifier) valid(ctx context.Context, cert *benchmarks.Certificate, t *milepost.Task, n int) (bool, error) {
	if cert == nil || !cert.Covers(n) {
		return false, nil
	}
	if stale, err := cert.Stale(t); err != nil || stale != "" {
		return false, err
	}
	if c.Digest != nil && cert.Digest != "" {
		digest, err := c.Digest(ctx, t.Image)
		if err != nil {
			return false, err
		}
		return digest == cert.Digest, nil
	}
	return true, nil
}

func (c *Certifier) tell(t *milepost.Task, cert *benchmarks.Certificate, err error, kept bool, done, total int) {
	if c.Progress != nil {
		c.Progress(t, cert, err, kept, done, total)
	}
}

// Save writes a set that a maker proved with [benchmarks.Checker.Discover]: the tasks, and before them certificates of what
// was found. The grader is tried on the first task, for all: they share their way of being judged.
func Save(ctx context.Context, check *benchmarks.Checker, set, by string, tasks []*milepost.Task) error {
	var more func(*milepost.Task, *benchmarks.Certificate) error
	if len(tasks) > 0 {
		var err error
		if more, err = Harness(ctx, check, tasks[0]); err != nil {
			return err
		}
	}
	if err := check.Certify(set, by, tasks, more); err != nil {
		return err
	}
	return benchmarks.Save(set, tasks)
}
