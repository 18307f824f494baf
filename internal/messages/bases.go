package messages

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// BaseImporter takes base repositories in; *repo.Store is one.
type BaseImporter interface {
	Has(tree string) bool
	Import(ctx context.Context, tree string, r io.Reader) (*repo.Base, error)
}

// BaseBound is how long one archive may take to be made and uploaded, or to be fetched.
const BaseBound = 10 * time.Minute

// askBound is how long the orchestrator has to say where an archive is.
const askBound = time.Minute

// BaseVersion is the version of BaseAsk and BaseReply.
const BaseVersion = 1

// BaseAsk asks the prober of a run for the archive of a task's base tree, BaseReply tells where it is.
type BaseAsk struct {
	V    int    `json:"v"`
	Task string `json:"task"` // task id
	Tree string `json:"tree"`
	// Again says that the object was not where the last reply said.
	Again bool `json:"again,omitempty"`
}

// BaseReply answers a BaseAsk.
type BaseReply struct {
	V      int    `json:"v"`
	Object string `json:"object,omitempty"` // name in the object store
	Error  string `json:"error,omitempty"`
}

// BaseSubject is where the prober of a run hears a BaseAsk; run is the run's id.
func BaseSubject(prefix, run string) string { return prefix + ".base." + SafeToken(run) }

// BaseFetcher gets the bases that a worker lacks. Concurrent fetches of one base are one, which
// outlives the callers that stop waiting for it.
type BaseFetcher struct {
	NC     *nats.Conn
	Prefix string
	Store  func(context.Context) (jetstream.ObjectStore, error)
	Bases  BaseImporter // nil: there is no store for fetched ones

	single singleflight.Group
}

// Have makes sure that the task's base can be had on this machine: from the store's cache, from Task.Repo, or from the
// orchestrator of the run. Errors: KindUnavailable, KindCorrupt, KindCanceled, KindInvalid where it cannot be.
func (f *BaseFetcher) Have(ctx context.Context, run string, task *milepost.Task) error {
	const op = "messages: fetch base"
	if f.Bases != nil && f.Bases.Has(task.BaseTree) {
		return nil
	}
	if _, err := os.Stat(task.Repo); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if f.Bases == nil {
		return milepost.E(op, milepost.KindInvalid, "repository %q of task %s is not on this machine, and the worker has no store for fetched ones", task.Repo, task.ID)
	}
	fetched := f.single.DoChan(task.BaseTree, func() (any, error) { // others may wait for it when this caller has gone
		return nil, f.fetch(context.WithoutCancel(ctx), run, task)
	})
	select {
	case r := <-fetched:
		return r.Err
	case <-ctx.Done():
		return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
	}
}

func (f *BaseFetcher) fetch(ctx context.Context, run string, task *milepost.Task) error {
	const op = "messages: fetch base"
	ctx, cancel := context.WithTimeout(ctx, BaseBound)
	defer cancel()
	var last error
	for _, again := range []bool{false, true} { // the second time the orchestrator looks whether the object is really there
		m, err := Encode(BaseSubject(f.Prefix, run), BaseAsk{V: BaseVersion, Task: task.ID, Tree: task.BaseTree, Again: again})
		if err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, askBound)
		answer, err := f.NC.RequestMsgWithContext(bounded, m)
		cancel()
		if err != nil {
			return milepost.E(op, milepost.KindUnavailable, "nobody answers for the base of task %s: %w", task.ID, err)
		}
		var reply BaseReply
		if err := Decode(BaseVersion, answer.Header, answer.Data, &reply); err != nil {
			return err
		}
		if reply.Error != "" {
			return milepost.E(op, milepost.KindUnavailable, "base of task %s: %s", task.ID, reply.Error)
		}
		if err = f.take(ctx, task.BaseTree, reply.Object); err == nil {
			return nil
		}
		last = milepost.E(op, milepost.KindUnavailable, "base of task %s: %w", task.ID, err)
	}
	return last
}

// take brings one archive from the object store into the base store.
func (f *BaseFetcher) take(ctx context.Context, tree, object string) error {
	store, err := f.Store(ctx)
	if err != nil {
		return err
	}
	r, err := store.Get(ctx, object)
	if err != nil {
		return err
	}
	_, err = f.Bases.Import(ctx, tree, r)
	return errors.Join(err, r.Close())
}
