package shadow

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// kinds are the queues in the order in which workers serve them; requests may have all but the last.
var kinds = [...]milepost.ProbeKind{milepost.ProbeBaseline, milepost.ProbeVerdict, milepost.ProbeStep, kindRecheck}

// names gives the names of streams and subjects under a prefix P; RUN is the run's id as one subject token.
//
//	stream P-probes   work queue   P.probe.vN.KIND.RUN  one durable consumer per wire version N and kind: "vN-baseline", …
//	stream P-results  work queue   P.result.RUN.EPOCH   one durable consumer per epoch: "RUN-EPOCH", filter P.result.RUN.>
//	stream P-epochs   limits       P.epoch.RUN          the last message of each subject is the run's epoch
//	stream P-dead     limits       P.dead.KIND.RUN      requests set aside: undecodable, or fatal to their workers
//	bucket P-objects  object store blob/ID, task/SHA256, base/TREE
//	core              P.wake  P.progress.RUN  P.worker.NAME  P.base.RUN (request and reply)
type names struct {
	prefix, run string
	version     int // of the requests that it names
}

func newNames(prefix, run string) names { return names{prefix, messages.SafeToken(run), wireVersion} }

func (n names) probes() string      { return n.prefix + "-probes" }
func (n names) results() string     { return n.prefix + "-results" }
func (n names) epochs() string      { return n.prefix + "-epochs" }
func (n names) epoch() string       { return n.prefix + ".epoch." + n.run }
func (n names) deadLetters() string { return n.prefix + "-dead" }
func (n names) bucket() string      { return n.prefix + "-objects" }
func (n names) wake() string        { return n.prefix + ".wake" }
func (n names) progress() string    { return n.prefix + ".progress." + n.run }
func (n names) workers() string     { return n.prefix + ".worker.*" }
func (n names) allProbes() string   { return n.prefix + ".probe.*.*." + n.run } // of all versions

func (n names) probe(k milepost.ProbeKind) string {
	return n.requests() + string(k) + "." + n.run
}
func (n names) requests() string                     { return fmt.Sprintf("%s.probe.v%d.", n.prefix, n.version) }
func (n names) queue(k milepost.ProbeKind) string    { return fmt.Sprintf("v%d-%s", n.version, k) }
func (n names) queueFor(k milepost.ProbeKind) string { return n.requests() + string(k) + ".>" }
func (n names) dead(k milepost.ProbeKind) string {
	return n.prefix + ".dead." + string(k) + "." + n.run
}
func (n names) worker(name string) string { return n.prefix + ".worker." + name }
func (n names) resultSubject(epoch uint64) string {
	return fmt.Sprintf("%s.result.%s.%d", n.prefix, n.run, epoch)
}
func (n names) resultFilter() string { return n.prefix + ".result." + n.run + ".>" }
func (n names) resultConsumer(epoch uint64) string {
	return fmt.Sprintf("%s-%d", n.run, epoch)
}

// ensure makes the streams, the bucket and the workers' consumers where they are missing. Both sides call it, so either
// may come first, and after a server lost its store. The orchestrator's settings hold: as owner it also changes what
// differs from them. Errors: KindUnavailable.
func ensure(ctx context.Context, js jetstream.JetStream, cfg StreamConfig, n names, owner bool) (jetstream.ObjectStore, error) {
	for _, s := range []jetstream.StreamConfig{
		{Name: n.probes(), Subjects: []string{cfg.Prefix + ".probe.>"}, Retention: jetstream.WorkQueuePolicy, MaxAge: cfg.MaxAge,
			MaxBytes: cfg.MaxRequests, Discard: jetstream.DiscardNew},
		{Name: n.results(), Subjects: []string{cfg.Prefix + ".result.>"}, Retention: jetstream.WorkQueuePolicy, MaxAge: cfg.MaxAge},
		{Name: n.epochs(), Subjects: []string{cfg.Prefix + ".epoch.>"}, MaxAge: 90 * 24 * time.Hour, MaxMsgsPerSubject: 1},
		{Name: n.deadLetters(), Subjects: []string{cfg.Prefix + ".dead.>"}, MaxAge: 7 * 24 * time.Hour, MaxMsgs: 1000}, // no MaxBytes: the server would set them apart from the start
	} {
		s.Replicas, s.Storage, s.Duplicates = cfg.Replicas, jetstream.FileStorage, min(2*time.Minute, s.MaxAge)
		if err := ensureStream(ctx, js, s, owner); err != nil {
			return nil, tooLarge(err, cfg)
		}
	}
	for _, k := range kinds {
		c := jetstream.ConsumerConfig{Durable: n.queue(k), FilterSubject: n.queueFor(k),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: cfg.AckWait, MaxDeliver: -1, MaxAckPending: -1}
		if err := ensureConsumer(ctx, js, n.probes(), c, owner); err != nil {
			return nil, err
		}
	}
	store, err := ensureBucket(ctx, js, jetstream.ObjectStoreConfig{Bucket: n.bucket(), TTL: cfg.MaxAge, Replicas: cfg.Replicas, MaxBytes: cfg.MaxObjects}, owner)
	return store, tooLarge(err, cfg)
}

// tooLarge says which settings to look at where the server lacks the room that they set apart.
func tooLarge(err error, cfg StreamConfig) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && strings.Contains(api.Description, "insufficient") {
		return milepost.E("shadow: make streams", milepost.KindUnavailable, "max_requests (%d) and max_objects (%d) must fit into the server's store (max_store): %w",
			cfg.MaxRequests, cfg.MaxObjects, err)
	}
	return err
}

// The following three change what exists only where it differs, not each time: every start of a prober or worker would
// otherwise rewrite the streams under the others.

func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, owner bool) error {
	have, err := js.Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		_, err = js.CreateOrUpdateStream(ctx, want) // another process may just have made it
	case err == nil && owner:
		h := have.CachedInfo().Config
		if h.MaxAge != want.MaxAge || h.Replicas != want.Replicas || max(h.MaxBytes, 0) != want.MaxBytes || h.Discard != want.Discard {
			_, err = js.UpdateStream(ctx, want)
		}
	}
	if err != nil {
		return milepost.E("shadow: make streams", milepost.KindUnavailable, "stream %s: %w", want.Name, err)
	}
	return nil
}

func ensureConsumer(ctx context.Context, js jetstream.JetStream, stream string, want jetstream.ConsumerConfig, owner bool) error {
	have, err := js.Consumer(ctx, stream, want.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || err == nil && owner && have.CachedInfo().Config.AckWait != want.AckWait {
		_, err = js.CreateOrUpdateConsumer(ctx, stream, want)
	}
	if err != nil {
		return milepost.E("shadow: make streams", milepost.KindUnavailable, "consumer %s: %w", want.Durable, err)
	}
	return nil
}

func ensureBucket(ctx context.Context, js jetstream.JetStream, want jetstream.ObjectStoreConfig, owner bool) (jetstream.ObjectStore, error) {
	store, err := js.ObjectStore(ctx, want.Bucket)
	switch {
	case errors.Is(err, jetstream.ErrBucketNotFound):
		store, err = js.CreateOrUpdateObjectStore(ctx, want)
	case err == nil && owner:
		var have jetstream.Stream
		if have, err = js.Stream(ctx, "OBJ_"+want.Bucket); err != nil { // the stream behind the bucket, which alone tells its size
			break
		}
		if h := have.CachedInfo().Config; h.MaxAge != want.TTL || h.MaxBytes != want.MaxBytes || h.Replicas != want.Replicas {
			store, err = js.UpdateObjectStore(ctx, want)
		}
	}
	if err != nil {
		return nil, milepost.E("shadow: make streams", milepost.KindUnavailable, "object store %s: %w", want.Bucket, err)
	}
	return store, nil
}
