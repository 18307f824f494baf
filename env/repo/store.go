package repo

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
)

// Base is the untouched repository of a task: a checkout that nobody changes, with exactly one commit and no trace of
// any other. Its fields are shared between goroutines and never written after it is handed out.
type Base struct {
	Tree   string // git tree id, proven against the working files
	Commit string // the one commit: synthetic, without parent, the same for the same tree on every machine
	Dir    string // absolute; working files and .git; read-only by convention
	Index  Index

	once sync.Once
	laid layout // of Index, made when it is first asked for
}

func (b *Base) layout() layout {
	b.once.Do(func() { b.laid = newLayout(b.Index) })
	return b.laid
}

// TreeID is the git tree id of base + delta, which must have passed [CheckDelta]. It costs what the delta touches: the
// first call of a base looks at every file, no other does.
func (b *Base) TreeID(delta []milepost.TreeChange) string {
	id, _ := b.layout().treeID(delta, nil) // only what is given the objects can fail
	return id
}

// Store is the cache of base checkouts in a directory: <dir>/<tree id>/ is a finished base, <tree id>.tmp one being made.
//
// Invariants: a directory under its final name is complete (it gets that name by rename). One builder per tree at a time,
// among goroutines by single flight and among processes by a lock on <tree id>.lock, which dies with its holder; so what
// is found under the temporary name while holding the lock is a dead builder's and is removed. A base is verified file by
// file once per process, when it is first used.
type Store struct {
	dir    string
	flight singleflight.Group

	mu    sync.Mutex
	bases map[string]*Base // by tree id
}

// NewStore opens the cache in dir, which is made where missing. Errors: KindUnavailable.
func NewStore(dir string) (*Store, error) {
	const op = "repo: open store"
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return &Store{dir: abs, bases: map[string]*Base{}}, nil
}

// Base returns the base checkout of the task, from the cache where Task.BaseTree is there, else by taking the tree of
// Task.BaseCommit out of Task.Repo, or all files of Task.Repo where BaseCommit is "" (see [FolderTree]). Errors: KindInvalid for a task whose commit is missing or has another tree than
// BaseTree, KindNotFound for a repository that is not on this disk, KindCorrupt for a damaged cache or repository,
// KindUnavailable for a full disk and the like, KindCanceled.
func (s *Store) Base(ctx context.Context, task *milepost.Task) (*Base, error) {
	return s.get(ctx, task.BaseTree, func(ctx context.Context, tmp string) error { return cloneTree(ctx, task, tmp) })
}

// Has reports whether the tree's base is in the cache, so that Base needs no repository for it.
func (s *Store) Has(tree string) bool {
	if !isObjectID(tree) {
		return false
	}
	_, err := os.Stat(filepath.Join(s.dir, tree))
	return err == nil
}

// Export writes the base's objects to w, as a git pack that Import reads.
func (s *Store) Export(ctx context.Context, b *Base, w io.Writer) error {
	return packTree(ctx, b.Dir, b.Tree, w)
}

// Import makes the base of the tree from what Export wrote, unless the cache has it already (r is not read then). It is
// how a worker without the task's repository gets its base. Errors: KindCorrupt for a pack that does not hold the tree,
// else as for Base.
func (s *Store) Import(ctx context.Context, tree string, r io.Reader) (*Base, error) {
	return s.get(ctx, tree, func(ctx context.Context, tmp string) error { return buildFromPack(ctx, tree, tmp, r) })
}

// buildBound is how long one base may take to make, whoever still waits for it.
const buildBound = 10 * time.Minute

// get returns the cached base of the tree or has build make it in a temporary directory.
func (s *Store) get(ctx context.Context, tree string, build func(ctx context.Context, tmp string) error) (*Base, error) {
	const op = "repo: base"
	if !isObjectID(tree) {
		return nil, milepost.E(op, milepost.KindInvalid, "base tree %q is not 40 lower-case hex digits", tree)
	}
	s.mu.Lock()
	b := s.bases[tree]
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	// The build outlives a caller that gives up: others may wait for the same one.
	done := s.flight.DoChan(tree, func() (any, error) {
		bctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), buildBound)
		defer cancel()
		b, err := s.load(bctx, tree, build)
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		s.mu.Lock()
		s.bases[tree] = b
		s.mu.Unlock()
		return b, nil
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*Base), nil
	case <-ctx.Done():
		return nil, milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
	}
}

// load opens the finished base of the tree, making it first where it is missing.
func (s *Store) load(ctx context.Context, tree string, build func(ctx context.Context, tmp string) error) (*Base, error) {
	final := filepath.Join(s.dir, tree)
	if !s.Has(tree) {
		unlock, err := lockFile(ctx, final+".lock")
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	if s.Has(tree) { // there before, or another process made it while this one waited for the lock
		return openBase(ctx, final, tree)
	}
	tmp := final + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return nil, err
	}
	if err := build(ctx, tmp); err != nil {
		return nil, errors.Join(err, os.RemoveAll(tmp))
	}
	b, err := openBase(ctx, tmp, tree)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, final); err != nil {
		return nil, errors.Join(err, os.RemoveAll(tmp))
	}
	b.Dir = final
	return b, nil
}

// lockPoll is the pause between two tries for a lock that another process holds.
const lockPoll = 20 * time.Millisecond

// lockFile takes the exclusive lock of the named file and returns what releases it.
func lockFile(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing releases it
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}
