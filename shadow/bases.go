package shadow

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/singleflight"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// BaseExporter gives base repositories away; *repo.Store is one.
type BaseExporter interface {
	Base(ctx context.Context, task *milepost.Task) (*repo.Base, error)
	Export(ctx context.Context, b *repo.Base, w io.Writer) error
}

// BaseImporter takes them in; *repo.Store is one.
type BaseImporter interface {
	Has(tree string) bool
	Import(ctx context.Context, tree string, r io.Reader) (*repo.Base, error)
}

// baseBound is how long one archive may take to be made and uploaded, or to be fetched.
const baseBound = 10 * time.Minute

// onBaseAsk answers a worker that lacks a base repository, in the background: making the archive may take long.
func (p *Prober) onBaseAsk(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		return // the worker's request times out, or a newer epoch answers
	}
	p.wg.Go(func() {
		reply := wireBaseReply{V: wireVersion}
		if name, err := p.putBase(m); err != nil {
			reply.Error = err.Error()
			p.report(err)
		} else {
			reply.Object = name
		}
		if out, err := encode(m.Reply, reply); err == nil {
			p.report(milepost.Wrap("shadow: answer for a base", milepost.KindUnavailable, p.nc.PublishMsg(out)))
		}
	})
}

// putBase uploads the archive that m asks for and returns the object's name.
func (p *Prober) putBase(m *nats.Msg) (string, error) {
	const op = "shadow: base archive"
	var ask wireBaseAsk
	if err := decode(m.Header, m.Data, &ask); err != nil {
		return "", err
	}
	p.mu.Lock()
	task := p.tasks[ask.Task]
	p.mu.Unlock()
	switch {
	case p.opts.bases == nil:
		return "", milepost.E(op, milepost.KindInvalid, "the orchestrator gives no base repositories away (WithBases)")
	case task == nil || task.BaseTree != ask.Tree:
		return "", milepost.E(op, milepost.KindNotFound, "task %q with base tree %q is not of this run", ask.Task, ask.Tree)
	}
	ctx, cancel := context.WithTimeout(p.ctx, baseBound)
	defer cancel()
	name := baseObject(ask.Tree)
	if ask.Again {
		p.objs.forget(name)
	}
	return name, p.objs.upload(ctx, name, func() (io.ReadCloser, error) {
		b, err := p.opts.bases.Base(ctx, task)
		if err != nil {
			return nil, err
		}
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(p.opts.bases.Export(ctx, b, w)) }() // ends with the upload, which closes r
		return r, nil
	})
}

// baseFetcher gets the bases that a worker lacks. Concurrent probes of one base share the fetch.
type baseFetcher struct {
	w      *Worker
	bases  BaseImporter
	single singleflight.Group
}

// have makes sure that the task's base can be had on this machine: from the store's cache, from Task.Repo, or from the
// orchestrator of the run. Errors: KindUnavailable, KindCorrupt, KindInvalid where it cannot be.
func (f *baseFetcher) have(ctx context.Context, run string, task *milepost.Task) error {
	const op = "shadow: fetch base"
	if f.bases != nil && f.bases.Has(task.BaseTree) {
		return nil
	}
	if _, err := os.Stat(task.Repo); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if f.bases == nil {
		return milepost.E(op, milepost.KindInvalid, "repository %q of task %s is not on this machine, and the worker has no store for fetched ones", task.Repo, task.ID)
	}
	_, err, _ := f.single.Do(task.BaseTree, func() (any, error) { return nil, f.fetch(ctx, run, task) })
	return err
}

func (f *baseFetcher) fetch(ctx context.Context, run string, task *milepost.Task) error {
	const op = "shadow: fetch base"
	ctx, cancel := context.WithTimeout(ctx, baseBound)
	defer cancel()
	var last error
	for _, again := range []bool{false, true} { // the second time the orchestrator looks whether the object is really there
		m, err := encode(newNames(f.w.cfg.Streams.Prefix, run).base(), wireBaseAsk{V: wireVersion, Task: task.ID, Tree: task.BaseTree, Again: again})
		if err != nil {
			return err
		}
		answer, err := f.w.nc.RequestMsgWithContext(ctx, m)
		if err != nil {
			return milepost.E(op, milepost.KindUnavailable, "nobody answers for the base of task %s: %w", task.ID, err)
		}
		var reply wireBaseReply
		if err := decode(answer.Header, answer.Data, &reply); err != nil {
			return err
		}
		if reply.Error != "" {
			return milepost.E(op, milepost.KindUnavailable, "base of task %s: %s", task.ID, reply.Error)
		}
		r, err := f.w.objects().Get(ctx, reply.Object)
		if err == nil {
			_, err = f.bases.Import(ctx, task.BaseTree, r)
			err = errors.Join(err, r.Close())
		}
		if err == nil {
			return nil
		}
		last = milepost.E(op, milepost.KindUnavailable, "base of task %s: %w", task.ID, err)
	}
	return last
}

// parseTask reads the wire form of a task, given its sum. Errors: KindCorrupt.
func parseTask(sum string, body json.RawMessage) (*milepost.Task, error) {
	const op = "shadow: read task"
	if got := hashHex(body); got != sum {
		return nil, milepost.E(op, milepost.KindCorrupt, "task %s has the body of %s", sum, got)
	}
	var t milepost.Task
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "task %s: %w", sum, err)
	}
	return &t, nil
}
