package remote

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// parcel is a body inside a message or, where it is large, in the object store under its own hash.
type parcel struct {
	Body   json.RawMessage `json:"body,omitempty"`
	Object string          `json:"object,omitempty"`
	Sum    string          `json:"sum,omitempty"` // SHA-256 of an object's body
}

// depot is the run's object store, as either side uses it. The run's prober makes the bucket; a server that lost its store
// gets it anew, so a bucket that failed is looked up again.
type depot struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	bucket string
	inline int // bytes of a body or of files in one message

	mu    sync.Mutex
	store jetstream.ObjectStore
	objs  *messages.Objects
}

func newDepot(nc *nats.Conn, prefix string, inline int) (*depot, error) {
	js, err := jetstream.New(nc)
	return &depot{nc: nc, js: js, bucket: prefix + "-objects", inline: inline}, milepost.Wrap("remote: object store", milepost.KindUnavailable, err)
}

// room is how many bytes of bodies one message takes.
func (d *depot) room() int {
	return max(0, min(d.inline, (int(d.nc.MaxPayload())-messages.Headroom)/2))
}

// slowest is the rate [bytes a second] below which a store is taken for lost; storing has replyBound besides.
const slowest = 256 << 10

// storing bounds the storing of so many bytes: an acknowledgement that was lost never comes.
func storing(ctx context.Context, bytes int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, replyBound+time.Duration(bytes)*time.Second/slowest)
}

func (d *depot) open(ctx context.Context) (jetstream.ObjectStore, *messages.Objects, error) {
	const op = "remote: object store"
	ctx, cancel := context.WithTimeout(ctx, replyBound) // others wait for the lock
	defer cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.store != nil {
		return d.store, d.objs, nil
	}
	store, err := d.js.ObjectStore(ctx, d.bucket)
	if err != nil {
		return nil, nil, milepost.E(op, milepost.KindUnavailable, "%s: %w", d.bucket, err)
	}
	status, err := store.Status(ctx)
	if err != nil {
		return nil, nil, milepost.E(op, milepost.KindUnavailable, "%s: %w", d.bucket, err)
	}
	d.store, d.objs = store, messages.NewObjects(store, status.TTL(), time.Now)
	return d.store, d.objs, nil
}

// Store is the bucket.
func (d *depot) Store(ctx context.Context) (jetstream.ObjectStore, error) {
	store, _, err := d.open(ctx)
	return store, err
}

// failed lets the bucket be looked up again where err may come of it, and returns err.
func (d *depot) failed(err error) error {
	if err != nil {
		d.mu.Lock()
		d.store, d.objs = nil, nil
		d.mu.Unlock()
	}
	return err
}

// wrap makes a parcel of v.
func (d *depot) wrap(ctx context.Context, v any) (parcel, error) {
	body, err := marshal(v)
	if err != nil || len(body) <= d.room() {
		return parcel{Body: body}, err
	}
	store, err := d.Store(ctx)
	if err != nil {
		return parcel{}, err
	}
	ctx, cancel := storing(ctx, len(body))
	defer cancel()
	p := parcel{Sum: messages.HashHex(body)}
	p.Object = "rollout/" + p.Sum
	_, err = store.PutBytes(ctx, p.Object, body) // again each time: the store may have been lost since
	return p, milepost.Wrap("remote: object store", milepost.KindUnavailable, d.failed(err))
}

// unwrap reads a parcel into v. Errors: KindNotFound for an object that is gone, KindCorrupt, KindUnavailable.
func (d *depot) unwrap(ctx context.Context, p parcel, v any) error {
	const op = "remote: read parcel"
	body := []byte(p.Body)
	if p.Object != "" {
		store, err := d.Store(ctx)
		if err != nil {
			return err
		}
		if body, err = messages.Download(ctx, store, p.Object); err != nil {
			return d.failed(err)
		}
		if got := messages.HashHex(body); got != p.Sum {
			return milepost.E(op, milepost.KindCorrupt, "object %s has the body of %s", p.Object, got)
		}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return milepost.E(op, milepost.KindCorrupt, "%w", err)
	}
	return nil
}

// discard deletes the object of a parcel that was read. What stays is deleted by its age.
func (d *depot) discard(ctx context.Context, p parcel) {
	if p.Object == "" {
		return
	}
	if store, err := d.Store(ctx); err == nil {
		_ = store.Delete(ctx, p.Object)
	}
}

// pack makes the blobs of a difference travel: small ones in the message, the rest by the object store.
func (d *depot) pack(ctx context.Context, from messages.BlobGetter, delta []milepost.TreeChange) (map[string][]byte, error) {
	return messages.PackBlobs(from, delta, d.room(), func(object string, data []byte) error {
		_, objs, err := d.open(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := storing(ctx, len(data))
		defer cancel()
		return d.failed(objs.UploadBytes(ctx, object, data))
	})
}

// unpack takes them in.
func (d *depot) unpack(ctx context.Context, into messages.BlobStore, delta []milepost.TreeChange, inline map[string][]byte) error {
	for _, c := range delta {
		if c.Deleted || inline[c.Blob] != nil || into.Has(c.Blob) {
			continue
		}
		store, err := d.Store(ctx)
		if err != nil {
			return err
		}
		return d.failed(messages.UnpackBlobs(ctx, into, delta, inline, store))
	}
	return messages.UnpackBlobs(ctx, into, delta, inline, nil)
}
