package shadow

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
)

// kinds are the kinds of probe in the order in which workers serve them.
var kinds = [...]milepost.ProbeKind{milepost.ProbeBaseline, milepost.ProbeVerdict, milepost.ProbeStep}

// names gives the names of streams and subjects under a prefix P; RUN is the run's id as one subject token.
//
//	stream P-probes   work queue   P.probe.KIND.RUN     one durable consumer per kind: "baseline", "verdict", "step"
//	stream P-results  work queue   P.result.RUN.EPOCH   one durable consumer per epoch: "RUN-EPOCH", filter P.result.RUN.>
//	stream P-dead     limits       P.dead.KIND.RUN      requests set aside: undecodable, or fatal to their workers
//	bucket P-objects  object store blob/ID, task/SHA256, base/TREE
//	core              P.wake  P.progress.RUN  P.worker.NAME  P.base.RUN (request and reply)
type names struct{ prefix, run string }

func newNames(prefix, run string) names { return names{prefix, safeToken(run)} }

func (n names) probes() string      { return n.prefix + "-probes" }
func (n names) results() string     { return n.prefix + "-results" }
func (n names) deadLetters() string { return n.prefix + "-dead" }
func (n names) bucket() string      { return n.prefix + "-objects" }
func (n names) wake() string        { return n.prefix + ".wake" }
func (n names) progress() string    { return n.prefix + ".progress." + n.run }
func (n names) workers() string     { return n.prefix + ".worker.*" }
func (n names) allProbes() string   { return n.prefix + ".probe.*." + n.run }
func (n names) base() string        { return n.prefix + ".base." + n.run }

func (n names) probe(k milepost.ProbeKind) string {
	return n.prefix + ".probe." + string(k) + "." + n.run
}
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

// safeToken makes one subject token of s: s itself where it is made of letters, digits, - and _ and at most 64 long,
// otherwise "h" and a hash of it.
func safeToken(s string) string {
	ok := s != "" && len(s) <= 64
	for _, c := range []byte(s) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if ok {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "h" + hex.EncodeToString(sum[:12])
}

// ensure makes the streams, the bucket and the workers' consumers where they are missing. Both sides call it, so either
// may come first, and after a server lost its store. The orchestrator's settings hold: as owner it also brings what
// exists up to date. Errors: KindUnavailable.
func ensure(ctx context.Context, js jetstream.JetStream, cfg StreamConfig, owner bool) (jetstream.ObjectStore, error) {
	const op = "shadow: make streams"
	if !owner {
		if store, ok := attached(ctx, js, newNames(cfg.Prefix, "any")); ok {
			return store, nil
		}
	}
	n := newNames(cfg.Prefix, "any")
	streams := []jetstream.StreamConfig{
		{Name: n.probes(), Subjects: []string{cfg.Prefix + ".probe.>"}, Retention: jetstream.WorkQueuePolicy, MaxAge: cfg.MaxAge, Duplicates: 2 * time.Minute,
			MaxBytes: cfg.MaxRequests, Discard: jetstream.DiscardNew},
		{Name: n.results(), Subjects: []string{cfg.Prefix + ".result.>"}, Retention: jetstream.WorkQueuePolicy, MaxAge: cfg.MaxAge, Duplicates: 2 * time.Minute},
		{Name: n.deadLetters(), Subjects: []string{cfg.Prefix + ".dead.>"}, MaxAge: 7 * 24 * time.Hour, MaxMsgs: 1000}, // no MaxBytes: the server would set them apart from the start
	}
	for _, s := range streams {
		s.Replicas, s.Storage = cfg.Replicas, jetstream.FileStorage
		s.Duplicates = min(s.Duplicates, s.MaxAge)
		if _, err := js.CreateOrUpdateStream(ctx, s); err != nil {
			return nil, milepost.E(op, milepost.KindUnavailable, "stream %s (max_requests %d and max_objects %d must fit into the server's store): %w", s.Name, cfg.MaxRequests, cfg.MaxObjects, err)
		}
	}
	for _, k := range kinds {
		c := jetstream.ConsumerConfig{Durable: string(k), FilterSubject: cfg.Prefix + ".probe." + string(k) + ".>",
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: cfg.AckWait, MaxDeliver: -1, MaxAckPending: -1}
		if _, err := js.CreateOrUpdateConsumer(ctx, n.probes(), c); err != nil {
			return nil, milepost.E(op, milepost.KindUnavailable, "consumer %s: %w", k, err)
		}
	}
	store, err := js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: n.bucket(), TTL: cfg.MaxAge, Replicas: cfg.Replicas, MaxBytes: cfg.MaxObjects})
	if err != nil {
		return nil, milepost.E(op, milepost.KindUnavailable, "object store %s (max_objects %d must fit into the server's store beside max_requests %d): %w", n.bucket(), cfg.MaxObjects, cfg.MaxRequests, err)
	}
	return store, nil
}

// attached returns the object store if everything that ensure makes is there.
func attached(ctx context.Context, js jetstream.JetStream, n names) (jetstream.ObjectStore, bool) {
	for _, s := range []string{n.probes(), n.results(), n.deadLetters()} {
		if _, err := js.Stream(ctx, s); err != nil {
			return nil, false
		}
	}
	for _, k := range kinds {
		if _, err := js.Consumer(ctx, n.probes(), string(k)); err != nil {
			return nil, false
		}
	}
	store, err := js.ObjectStore(ctx, n.bucket())
	return store, err == nil
}

// claim makes this epoch the owner of the run's results: it ends the consumers of older epochs, purges the requests and
// results they left and makes its own consumer. Errors: KindConflict where a newer epoch owns the run, KindUnavailable.
func claim(ctx context.Context, js jetstream.JetStream, n names, epoch uint64, ackWait time.Duration) (jetstream.Consumer, error) {
	const op = "shadow: claim run"
	results, err := js.Stream(ctx, n.results())
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	older, err := otherEpochs(ctx, results, n, epoch)
	if err != nil {
		return nil, err
	}
	mine, err := results.Consumer(ctx, n.resultConsumer(epoch))
	if err == nil {
		return mine, nil // this epoch had it before the connection or the stream broke
	}
	for _, name := range older {
		if err := results.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	if err := results.Purge(ctx, jetstream.WithPurgeSubject(n.resultFilter())); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	probes, err := js.Stream(ctx, n.probes())
	if err == nil {
		err = probes.Purge(ctx, jetstream.WithPurgeSubject(n.allProbes()))
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	c, err := results.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: n.resultConsumer(epoch), FilterSubject: n.resultFilter(),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: -1, InactiveThreshold: time.Hour})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return c, nil
}

// otherEpochs lists the result consumers of the run's older epochs. Errors: KindConflict if there is a newer one.
func otherEpochs(ctx context.Context, results jetstream.Stream, n names, epoch uint64) ([]string, error) {
	const op = "shadow: claim run"
	var older []string
	list := results.ConsumerNames(ctx)
	for name := range list.Name() {
		digits, ok := strings.CutPrefix(name, n.run+"-")
		var e uint64
		if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		if _, err := fmt.Sscan(digits, &e); err != nil || e == epoch {
			continue
		}
		if e > epoch {
			return nil, milepost.E(op, milepost.KindConflict, "epoch %d of the run is older than epoch %d, which owns it now", epoch, e)
		}
		older = append(older, name)
	}
	if err := list.Err(); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return older, nil
}
