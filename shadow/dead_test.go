package shadow

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
)

// poisoned brings a request of each of the ids into the dead-letter stream, as ones that kill every worker, and one that
// nobody can read.
func poisoned(t *testing.T, r *rig, p *Prober, reqs ...milepost.ProbeRequest) *DeadLetters {
	t.Helper()
	r.worker.MaxDeliveries, r.worker.Slots = 1, 1
	js := jetStream(t, r.connect())
	var ids []string
	var taken []jetstream.Msg
	for _, req := range reqs {
		must(t, p.Publish(t.Context(), req))
		ids = append(ids, req.ID)
		q, err := js.Consumer(t.Context(), p.names.probes(), p.names.queue(req.Kind))
		must(t, err)
		m, err := q.Next(jetstream.FetchMaxWait(5 * time.Second))
		must(t, err)
		taken = append(taken, m)
	}
	for _, m := range taken { // a worker took them all and was never heard of again
		must(t, m.Nak())
	}
	f := &fakeRunner{}
	_, stop := r.startWorker(f)
	for id, got := range p.Await(t.Context(), ids, 20*time.Second) {
		if got.Trusted || got.Status != milepost.ProbeInfra {
			t.Fatalf("%s: %+v", id, got)
		}
	}
	stop()
	if len(f.trees()) != 0 {
		t.Fatalf("poison was run: %v", f.trees())
	}
	_, err := js.Publish(t.Context(), p.names.probe(milepost.ProbeStep), []byte("\x00 not a request"))
	must(t, err)
	_, stop = r.startWorker(f)
	d, err := OpenDead(t.Context(), r.connect(), r.prober.Streams.Prefix)
	must(t, err)
	eventually(t, "all are set aside", func() bool {
		all, err := d.List(t.Context(), DeadFilter{})
		must(t, err)
		return len(all) == len(reqs)+1
	})
	stop()
	return d
}

func TestDeadLettersAreListedAndReplayed(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	d := poisoned(t, r, p, r.step("e1", 0, 1), r.step("e2", 3, 2), r.verdict("e1", 3))
	for _, c := range []struct {
		name string
		f    DeadFilter
		want string // ids
	}{
		{"all", DeadFilter{}, "e1/verdict e1/0 e2/3 ?"},
		{"kind", DeadFilter{Kind: milepost.ProbeVerdict}, "e1/verdict"},
		{"run", DeadFilter{Run: "run-1"}, "e1/verdict e1/0 e2/3 ?"},
		{"other run", DeadFilter{Run: "run-2"}, ""},
		{"id", DeadFilter{ID: "e2/"}, "e2/3"},
		{"reason", DeadFilter{Reason: "checksum"}, "?"},
		{"later", DeadFilter{After: time.Now().Add(time.Hour)}, ""},
	} {
		list, err := d.List(t.Context(), c.f)
		must(t, err)
		var got []string
		for _, l := range list {
			if l.Fault != "" {
				l.ID = "?"
			}
			got = append(got, l.ID)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
	if _, err := d.List(t.Context(), DeadFilter{Kind: "other"}); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("unknown kind: %v", err)
	}
	all, err := d.List(t.Context(), DeadFilter{})
	must(t, err)
	verdict, first, second, unreadable := all[0], all[1], all[2], all[3] // verdicts are served before steps
	one0, err := d.Get(t.Context(), first.Seq)
	must(t, err)
	if one0.Task != r.task.ID || one0.Tree != treeID(1) || one0.Epoch != 1 || one0.Attempt != 1 || !strings.Contains(one0.Reason, "handed out") ||
		one0.Worker == "" || len(one0.Body) != one0.Bytes || first.Body != nil {
		t.Errorf("%+v", *one0)
	}

	// A worker that is well replays it: probes that are final stay, later requests of the state have an answer.
	replayed, err := d.Replay(t.Context(), first.Seq, false)
	must(t, err)
	if replayed.ID != "e1/0" {
		t.Errorf("replayed %+v", replayed)
	}
	f := &fakeRunner{}
	r.worker.MaxDeliveries = 5
	r.startWorker(f)
	eventually(t, "its result is kept", func() bool { return p.Stats().AfterBarrier == 1 })
	if again := p.Await(t.Context(), []string{"e1/0"}, 0)["e1/0"]; again.Trusted {
		t.Errorf("a final probe changed: %+v", again)
	}
	if got := one(t, p, r.step("e9", 0, 1)); !got.Trusted || !got.Cached || len(f.trees()) != 1 {
		t.Errorf("later request: %+v after %v", got, f.trees())
	}
	if _, err := d.Get(t.Context(), first.Seq); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("it is still there: %v", err)
	}

	if _, err := d.Replay(t.Context(), unreadable.Seq, false); milepost.KindOf(err) != milepost.KindCorrupt {
		t.Errorf("one that cannot be read: %v", err)
	}
	if _, err := d.Replay(t.Context(), second.Seq, true); err != nil {
		t.Errorf("kept: %v", err)
	}
	if _, err := d.Replay(t.Context(), second.Seq, true); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("twice within the window: %v", err)
	}
	r.newProberEpoch(2)
	if _, err := d.Replay(t.Context(), verdict.Seq, false); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("older epoch: %v", err)
	}
	if _, err := d.Get(t.Context(), verdict.Seq); err != nil {
		t.Errorf("a refused replay must leave it: %v", err)
	}
}

func TestNoDeadLetters(t *testing.T) {
	r := newRig(t, false)
	if _, err := OpenDead(t.Context(), r.connect(), "milepost"); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no streams: %v", err)
	}
	r.newProber()
	d, err := OpenDead(t.Context(), r.connect(), "milepost")
	must(t, err)
	if list, err := d.List(context.Background(), DeadFilter{}); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
}
