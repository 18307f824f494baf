package remote

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/shadow"
	"github.com/milepost-rl/milepost/shadow/natstest"
)

// plain is an episode without what differs from run to run.
func plain(t *testing.T, ep *milepost.Episode) string {
	t.Helper()
	e := *ep
	e.Started, e.Duration = time.Time{}, 0
	e.Steps = append([]milepost.Step(nil), e.Steps...)
	for i := range e.Steps {
		e.Steps[i].ModelTime, e.Steps[i].ToolTime = 0, 0
		e.Steps[i].Probe = same(e.Steps[i].Probe)
	}
	e.Outcome.Verdict = same(e.Outcome.Verdict)
	b, err := json.MarshalIndent(e, "", " ")
	must(t, err)
	return string(b)
}

// compare shows the first lines in which two texts differ.
func compare(t *testing.T, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Errorf("line %d\ngot  %.200s\nwant %.200s", i, strings.Join(g[max(0, i-5):min(len(g), i+5)], "\n"), strings.Join(w[max(0, i-5):min(len(w), i+5)], "\n"))
			return
		}
	}
	if len(g) != len(w) {
		t.Errorf("%d lines, want %d", len(g), len(w))
	}
}

func same(p *milepost.Probe) *milepost.Probe {
	if p == nil {
		return nil
	}
	q := *p
	q.Worker, q.Attempt, q.Queued, q.Ran, q.Total, q.Cached = "", 0, 0, 0, 0, false
	return &q
}

// local runs an episode in this process, with the run's prober.
func (r *rig) here(o *orchestrator, s script, n int) *milepost.Episode {
	r.t.Helper()
	boxes := env.New(memory.New())
	defer func() { must(r.t, boxes.Close()) }()
	runner, err := rollout.New(rollout.Default(), rollout.Deps{Env: boxes, Bases: r.local, Blobs: r.blobs, Model: &fakePolicy{script: s}, Prober: o.prober})
	must(r.t, err)
	ep, err := runner.Run(r.t.Context(), r.request(n))
	must(r.t, err)
	return ep
}

// TestSameAsHere: what comes back, its files and its probes are those of an episode of this process; large episodes and files
// go through the object store, which is empty of episodes afterwards.
func TestSameAsHere(t *testing.T) {
	for name, s := range map[string]script{"small": {Turns: 3, Tokens: 5}, "large": {Turns: 3, Tokens: 8_000, Bytes: 300 << 10}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.testers()
			first := r.orchestrate(1)
			want := r.here(first, s, 7)
			must(t, first.prober.Fill(t.Context(), []*milepost.Episode{want}, 20*time.Second))
			first.crash()

			o := r.orchestrate(2)
			r.worker(&fakePolicy{script: s})
			got := receive(t, r.start(t.Context(), o, 7, 1), 20*time.Second)
			must(t, got.err)
			if n := o.prober.Stats().Published; n != 4 {
				t.Errorf("%d probes were asked for before the barrier, want one a step and the verdict", n)
			}
			must(t, o.prober.Fill(t.Context(), []*milepost.Episode{got.ep}, 20*time.Second))
			compare(t, plain(t, got.ep), plain(t, want))
			for _, c := range differences(got.ep) {
				if _, err := r.blobs.Get(c.Blob); err != nil {
					t.Error(err)
				}
			}
			if !got.ep.Outcome.Verdict.Trusted || got.ep.Steps[2].Probe == nil || !got.ep.Steps[2].Probe.Trusted {
				t.Errorf("verdict %+v, probe %+v", got.ep.Outcome.Verdict, got.ep.Steps[2].Probe)
			}
			store, err := o.depot.Store(t.Context())
			must(t, err)
			list, err := store.List(t.Context())
			if err == nil {
				for _, i := range list {
					if len(i.Name) > 7 && i.Name[:8] == "rollout/" {
						t.Errorf("%s is still in the store", i.Name)
					}
				}
			}
			if s := o.Stats(); s.Ended != 1 || s.HandedOut != 1 || s.Held+s.Waiting != 0 || s.Slots != 4 || s.Fenced+s.Corrupt != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestElsewhere: a worker without the repository gets it from the run; nothing secret of the task travels.
func TestElsewhere(t *testing.T) {
	r := newRig(t)
	r.testers()
	_, err := r.local.Base(t.Context(), r.task)
	must(t, err)
	r.task.Repo = "/not/on/this/machine"
	o := r.orchestrate(1)
	r.worker(&fakePolicy{script: script{Turns: 1, Tokens: 1}})
	a := receive(t, r.start(t.Context(), o, 1, 1), 20*time.Second)
	must(t, a.err)
	if a.ep.Status != milepost.EpisodeCompleted {
		t.Errorf("%+v", a.ep)
	}
	if b, err := json.Marshal(agentTask(r.task)); err != nil || strings.Contains(string(b), "secret") || !strings.Contains(string(b), `"A":"1"`) {
		t.Errorf("%s %v", b, err)
	}
}

// TestCredentials: run and worker need no more of a server than docs/workers.md says.
func TestCredentials(t *testing.T) {
	url, ca, creds, _ := natstest.Secured(t, "127.0.0.1")
	r := newRig(t)
	c := shadow.DefaultConnect()
	c.URL, c.TLSCA, c.Creds = url, ca, creds
	r.elsewhere = &c
	o := r.orchestrate(1)
	r.worker(&fakePolicy{script: script{Turns: 2, Tokens: 4_000, Bytes: 300 << 10}})
	a := receive(t, r.start(t.Context(), o, 1, 1), 30*time.Second)
	if a.err != nil || a.ep.Status != milepost.EpisodeCompleted || len(a.ep.Samples[0].Tokens) != 12_000 {
		t.Errorf("%v %+v", a.err, a.ep)
	}
}

// TestCancel: the caller's context ends an episode at its worker at once, with what it has; one that waits is only an error.
func TestCancel(t *testing.T) {
	r := newRig(t)
	r.work.Slots = 3
	r.testers()
	o := r.orchestrate(1)
	p := &fakePolicy{script: script{Turns: 5, Tokens: 2}, gate: make(chan struct{})}
	r.worker(p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := r.start(ctx, o, 0, 5)
	eventually(t, "three episodes are under way", 10*time.Second, func() bool {
		return o.Stats().Held == 3 && o.prober.Stats().Published >= 3
	})
	began := time.Now()
	cancel()
	begun, waited := 0, 0
	for range 5 {
		a := receive(t, got, 5*time.Second)
		switch {
		case a.ep != nil && a.err == nil:
			begun++
			if a.ep.Status != milepost.EpisodeCancelled || len(a.ep.Steps) != 1 || a.ep.Sampled() != 2 {
				t.Errorf("%+v", a.ep)
			}
		case milepost.KindOf(a.err) == milepost.KindCanceled:
			waited++
		default:
			t.Errorf("%+v", a)
		}
	}
	t.Logf("cancelled within %s", time.Since(began))
	if s := o.Stats(); begun != 3 || waited != 2 || s.Cancelled != 5 || s.Abandoned != 0 || s.Held+s.Waiting != 0 {
		t.Errorf("%d begun, %d waited, %+v", begun, waited, s)
	}
	close(p.gate)
	a := receive(t, r.start(t.Context(), o, 10, 1), 10*time.Second) // and the worker goes on
	if a.err != nil || a.ep.Status != milepost.EpisodeCompleted {
		t.Errorf("%+v", a)
	}
}

// TestDrain: a worker that stops finishes what it holds, and hands back at once what takes too long.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run.Lease = time.Minute
	o := r.orchestrate(1)
	stop := r.worker(&fakePolicy{script: script{Turns: 2, Tokens: 1, Delay: 200 * time.Millisecond}})
	got := r.start(t.Context(), o, 0, 4)
	eventually(t, "the worker has all", 10*time.Second, func() bool { return o.Stats().Held == 4 })
	stop()
	for range 4 {
		if a := receive(t, got, 5*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeCompleted {
			t.Errorf("%+v", a)
		}
	}
	r.work.DrainTimeout = 100 * time.Millisecond
	stop = r.worker(&fakePolicy{script: script{Turns: 2, Tokens: 1}, gate: make(chan struct{})})
	got = r.start(t.Context(), o, 10, 4)
	eventually(t, "the worker has all", 10*time.Second, func() bool { return o.Stats().Held == 4 })
	stop()
	if s := o.Stats(); s.HandedBack != 4 || s.Lost != 0 || s.Waiting != 4 {
		t.Errorf("%+v", s)
	}
	r.worker(&fakePolicy{script: script{Turns: 2, Tokens: 1}})
	for range 4 {
		if a := receive(t, got, 20*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeCompleted {
			t.Errorf("%+v", a)
		}
	}
}

// TestStopWithoutServer: a worker whose server is away stops well.
func TestStopWithoutServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.orchestrate(1)
	stop := r.worker(&fakePolicy{script: script{Turns: 1, Tokens: 1}})
	if a := receive(t, r.start(t.Context(), o, 0, 1), 20*time.Second); a.err != nil {
		t.Fatal(a.err)
	}
	r.srv.Close()
	began := time.Now()
	stop() // fails the test where the worker returns an error
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %s", d)
	}
}

// TestFollow: a worker's policy has the states of the run's endpoints before its first episode and hears changes at once; an old
// notice changes nothing.
func TestFollow(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate(1)
	o.pool.set(policy.EndpointState{URL: "http://a", Approved: 1})
	p := &fakePolicy{script: script{Turns: 1, Tokens: 1}}
	var w *Worker
	r.worker(p, func(got *Worker) { w = got })
	if a := receive(t, r.start(t.Context(), o, 0, 1), 10*time.Second); a.err != nil {
		t.Fatal(a.err)
	}
	if s := p.last(); len(s) != 1 || s[0].Approved != 1 {
		t.Errorf("%+v", s)
	}
	began := time.Now()
	o.pool.set(policy.EndpointState{URL: "http://a", Approved: 2})
	eventually(t, "the approval is known", 500*time.Millisecond, func() bool { s := p.last(); return len(s) == 1 && s[0].Approved == 2 })
	t.Logf("known after %s", time.Since(began))
	w.mu.Lock()
	n := w.runs["run"].notice
	n.Seq--
	n.Endpoints = nil
	must(t, w.learn(n, time.Now()))
	n.Epoch, n.Seq = 0, 1<<40
	must(t, w.learn(n, time.Now()))
	w.mu.Unlock()
	if s := p.last(); len(s) != 1 {
		t.Errorf("an old notice was followed: %+v", s)
	}
	o.Close()
	eventually(t, "the worker forgets a run that ended", 2*time.Second, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.closed })
}

// TestVersions: a worker and a run of different versions say so and leave each other alone.
func TestVersions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.orchestrate(1)
	r.worker(&fakePolicy{script: script{Turns: 1, Tokens: 1}}, func(w *Worker) { w.version, w.info.Wire = 2, 2 })
	ctx, cancel := context.WithCancel(t.Context())
	got := r.start(ctx, o, 0, 1)
	eventually(t, "both say so", 5*time.Second, func() bool {
		return r.warned("speaks version 1 of the messages, this worker version 2") && r.warned("speaks version 2 of the messages, this run version 1")
	})
	if s := o.Stats(); s.HandedOut != 0 || s.Workers != 0 || s.Waiting != 1 {
		t.Errorf("%+v", s)
	}
	list, err := ListWorkers(t.Context(), r.connect(), "milepost", 300*time.Millisecond)
	if err != nil || len(list) != 1 || list[0].Wire != 2 || list[0].Slots != 4 {
		t.Errorf("%+v %v", list, err)
	}
	cancel()
	if a := receive(t, got, 5*time.Second); milepost.KindOf(a.err) != milepost.KindCanceled {
		t.Errorf("%+v", a)
	}
}
