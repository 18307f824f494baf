package messages

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/milepost-rl/milepost"
)

// The names of objects, by what is in them.

// BlobObject names the bytes of a blob by its git id.
func BlobObject(id string) string { return "blob/" + id }

// TaskObject names a task's wire form by its SHA-256.
func TaskObject(sum string) string { return "task/" + sum }

// BaseObject names the archive of a base repository by its tree.
func BaseObject(tree string) string { return "base/" + tree }

// Objects puts content-addressed bytes into the object store, each name once for as long as the store keeps it.
//
// Invariants: names are content addresses, so writing one twice is waste and never a conflict; put holds an entry for
// each name known to be there until half its life in the store is over; concurrent puts of one name share the upload.
type Objects struct {
	store jetstream.ObjectStore
	ttl   time.Duration
	now   func() time.Time

	single singleflight.Group
	mu     sync.Mutex
	put    map[string]time.Time
}

// NewObjects puts into store, which keeps objects for ttl.
func NewObjects(store jetstream.ObjectStore, ttl time.Duration, now func() time.Time) *Objects {
	return &Objects{store: store, ttl: ttl, now: now, put: map[string]time.Time{}}
}

func (o *Objects) has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.put[name]
	return ok && o.now().Sub(at) < o.ttl/2
}

func (o *Objects) remember(name string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put[name] = at
}

// Forget makes the next upload of name happen whatever is known of it.
func (o *Objects) Forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.put, name)
}

// Upload stores what open gives under name unless it is there. Errors: KindUnavailable, and those of open.
func (o *Objects) Upload(ctx context.Context, name string, open func() (io.ReadCloser, error)) error {
	if o.has(name) {
		return nil
	}
	_, err, _ := o.single.Do(name, func() (any, error) {
		// Writing a name again would take the old chunks from under a reader: another run may have put it already.
		if info, err := o.store.GetInfo(ctx, name); err == nil && o.now().Sub(info.ModTime) < o.ttl/2 {
			o.remember(name, info.ModTime)
			return nil, nil
		}
		r, err := open()
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }()
		if _, err := o.store.Put(ctx, jetstream.ObjectMeta{Name: name}, r); err != nil {
			return nil, milepost.E("messages: upload", milepost.KindUnavailable, "object %s: %w", name, err)
		}
		o.remember(name, o.now())
		return nil, nil
	})
	return err
}

// UploadBytes is Upload of bytes.
func (o *Objects) UploadBytes(ctx context.Context, name string, data []byte) error {
	return o.Upload(ctx, name, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
}

// Download returns the bytes of an object. Errors: KindNotFound, KindUnavailable.
func Download(ctx context.Context, store jetstream.ObjectStore, name string) ([]byte, error) {
	data, err := store.GetBytes(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, milepost.E("messages: download", milepost.KindNotFound, "object %s is not in the store", name)
	}
	if err != nil {
		return nil, milepost.E("messages: download", milepost.KindUnavailable, "object %s: %w", name, err)
	}
	return data, nil
}
