package weights

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	pusher  *Pusher
	trainer *trainer
	gate    *gate
	servers []*server
	urls    []string
}

func newRig(t *testing.T, servers int, change func(*Config)) *rig {
	t.Helper()
	r := &rig{trainer: &trainer{}, gate: &gate{}}
	for range servers {
		s := newServer(t)
		r.servers = append(r.servers, s)
		r.urls = append(r.urls, s.URL)
	}
	cfg := DefaultConfig()
	cfg.Canary.Vocab = 340
	if change != nil {
		change(&cfg)
	}
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	var err error
	if r.pusher, err = New(Disk{}, cfg, Deps{Scorer: r.trainer, Gate: r.gate, HTTP: client}); err != nil {
		t.Fatal(err)
	}
	return r
}

// push is an update of the trainer to the weight, exported and pushed.
func (r *rig) push(t *testing.T, version int32, weight float64) (Report, error) {
	t.Helper()
	r.trainer.weight = weight
	return r.pusher.Push(t.Context(), version, exported(t, weight, false), r.urls)
}

func (r *rig) mustPush(t *testing.T, version int32, weight float64) Report {
	t.Helper()
	report, err := r.push(t, version, weight)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var aPush = []string{
	"/pause?clear_cache=true&mode=keep", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache?reset_running_requests=true", "/update_weight_version", "/resume",
}

func TestPush(t *testing.T) {
	r := newRig(t, 2, nil)
	report := r.mustPush(t, 12, 0.5)
	for i, s := range r.servers {
		if !slices.Equal(s.calls, aPush) || s.weight != 0.5 || s.version != "v12" {
			t.Errorf("server %d: calls %v, weight %v, version %s", i, s.calls, s.weight, s.version)
		}
		e := report.Endpoints[i]
		if e.URL != s.URL || e.Pause <= 0 || e.Load > e.Pause || e.Cold.Tokens != 64 || e.Warm.Tokens != 64 || e.Error != "" || !e.Approved || e.Attempts != 1 {
			t.Errorf("report of server %d: %+v", i, e)
		}
		if told := r.gate.of(s); !slices.Equal(told, []string{"shut", "approve v12"}) {
			t.Errorf("gate of server %d: %v", i, told)
		}
	}
	if report.Cold.Tokens != 128 || report.Warm.Tokens != 128 || report.Cold.Mean > 1e-6 || report.Total < report.Pause || report.Method != "disk" || report.RolledBack != -1 {
		t.Errorf("report %+v", report)
	}
	if m := report.Metrics(); m["push_version"] != 12 || m["canary_tokens"] != 256 || m["push_quarantined"] != 0 || m["push_repeats"] != 0 {
		t.Errorf("metrics %v", m)
	}
}

// TestCanaryCatches shows the canary every way in which a push that answered 200 did not take on one replica of two:
// that one is pushed again, quarantined, and the other serves.
func TestCanaryCatches(t *testing.T) {
	cases := map[string]struct {
		wrong func(*server)
		tied  bool
		want  string
	}{
		"a skipped reload":     {func(s *server) { s.skipReload = 9 }, false, "does not serve the trainer's weights: mean logprob gap 0.002"},
		"tied embeddings":      {func(s *server) { s.skipReload = 9 }, true, "export an untied lm_head.weight"},
		"a stale prefix cache": {func(s *server) { s.staleCache = true }, false, "does not serve the trainer's weights"},
		"a version not taken":  {func(s *server) { s.fail = "/update_weight_version" }, false, "made to fail"},
		"a load that failed":   {func(s *server) { s.fail = "/collective_rpc" }, false, "made to fail"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, nil)
			r.mustPush(t, 1, 0)
			r.gate.of(r.servers[0])
			r.gate.of(r.servers[1])
			r.trainer.weight = 0.002 // one small update
			c.wrong(r.servers[1])
			report, err := r.pusher.Push(t.Context(), 2, exported(t, 0.002, c.tied), r.urls)
			if err != nil {
				t.Fatalf("the other replica is well: %v", err)
			}
			good, bad := report.Endpoints[0], report.Endpoints[1]
			if !good.Approved || good.Attempts != 1 || bad.Approved || !bad.Quarantined || bad.Attempts != 2 || !strings.Contains(bad.Error, c.want) || !strings.Contains(bad.Error, r.urls[1]) {
				t.Errorf("report %+v, want an error with %q", report.Endpoints, c.want)
			}
			if told := r.gate.of(r.servers[0]); !slices.Equal(told, []string{"shut", "approve v2"}) {
				t.Errorf("gate of the good replica: %v", told)
			}
			if told := r.gate.of(r.servers[1]); !slices.Equal(told, []string{"shut", "quarantine v2", "shut", "quarantine v2"}) {
				t.Errorf("gate of the bad replica: %v", told)
			}
			if m := report.Metrics(); m["push_quarantined"] != 1 || m["push_repeats"] != 1 || m["canary_gap_mean"] > 1e-6 || m["canary_tokens"] != 128 {
				t.Errorf("metrics %v", m)
			}
			r.servers[1].heal()
			if report = r.mustPush(t, 3, 0.004); !report.Endpoints[1].Approved || r.servers[1].weight != 0.004 {
				t.Errorf("the next good push: %+v", report.Endpoints[1])
			}
		})
	}
}

func TestARepeatHeals(t *testing.T) {
	r := newRig(t, 1, nil)
	r.mustPush(t, 1, 0)
	r.gate.of(r.servers[0])
	r.servers[0].skipReload = 1
	report := r.mustPush(t, 2, 0.002)
	if e := report.Endpoints[0]; !e.Approved || e.Attempts != 2 || e.Error == "" || report.Metrics()["push_repeats"] != 1 {
		t.Errorf("%+v", e)
	}
	if told := r.gate.of(r.servers[0]); !slices.Equal(told, []string{"shut", "quarantine v2", "shut", "approve v2"}) {
		t.Errorf("gate %v", told)
	}
}

// TestSalted: no cache is reset, and the canary is cold where it says so: what an earlier one of the same version left, here
// under weights that did not take, does not match.
func TestSalted(t *testing.T) {
	r := newRig(t, 1, func(c *Config) { c.Salted = true })
	r.mustPush(t, 1, 0)
	r.servers[0].skipReload = 1
	if e := r.mustPush(t, 2, 0.002).Endpoints[0]; !e.Approved || e.Attempts != 2 || e.Cold.Mean > 1e-6 || e.Warm.Mean > 1e-6 {
		t.Errorf("%+v, want the repeat to agree cold and warm", e)
	}
	if calls := strings.Join(r.servers[0].calls, " "); strings.Contains(calls, "reset_prefix_cache") || !strings.Contains(calls, "/pause?clear_cache=false&mode=keep") {
		t.Errorf("calls %s", calls)
	}
	if n := len(r.servers[0].cached); n != 3*4 {
		t.Errorf("%d prefixes are cached, want those of three canaries of 4 prompts", n)
	}
}

// TestNobodyTakesThem: where no replica is left the last approved weights go back, and the error says so.
func TestNobodyTakesThem(t *testing.T) {
	r := newRig(t, 2, func(c *Config) { c.Repeats = 0 })
	r.mustPush(t, 1, 0.5)
	r.trainer.weight = 0.7
	report, err := r.pusher.Push(t.Context(), 2, exported(t, 0.6, false), r.urls) // damaged behind the trainer's back
	if milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "version 1 was put back on "+r.urls[0]+", "+r.urls[1]) || !strings.Contains(err.Error(), "mean logprob gap 0.1") {
		t.Fatalf("error %v", err)
	}
	for _, s := range r.servers {
		if s.weight != 0.5 || s.version != "v1" {
			t.Errorf("weight %v, version %s; want those of version 1", s.weight, s.version)
		}
		if told := r.gate.of(s); !slices.Equal(told, []string{"shut", "approve v1", "shut", "quarantine v2"}) {
			t.Errorf("gate %v", told)
		}
	}
	if report.RolledBack != 1 || report.Metrics()["push_quarantined"] != 2 {
		t.Errorf("report %+v", report)
	}
	r.mustPush(t, 2, 0.7)
}

// TestTheFirstPushFails: there is nothing to put back.
func TestTheFirstPushFails(t *testing.T) {
	r := newRig(t, 1, nil)
	r.trainer.weight = 1
	if _, err := r.pusher.Push(t.Context(), 0, exported(t, 0, false), r.urls); milepost.KindOf(err) != milepost.KindCorrupt || strings.Contains(err.Error(), "put back") {
		t.Errorf("error %v", err)
	}
}

// TestDeadAndHangingReplicas: neither fails the push, and the one that is well is approved without waiting for them.
func TestDeadAndHangingReplicas(t *testing.T) {
	r := newRig(t, 3, func(c *Config) { c.PauseTimeout = 300 * time.Millisecond })
	r.servers[1].Close()
	r.servers[2].hang = "/pause"
	began := time.Now()
	report := r.mustPush(t, 1, 0.5)
	for i, want := range [][]string{{"shut", "approve v1"}, {"shut", "quarantine v1", "shut", "quarantine v1"}, {"shut", "quarantine v1"}} {
		if told := r.gate.of(r.servers[i]); !slices.Equal(told, want) {
			t.Errorf("gate of replica %d: %v", i, told)
		}
	}
	if e := report.Endpoints[2]; e.Attempts != 1 || !strings.Contains(e.Error, "no answer within 300ms") {
		t.Errorf("a replica that hangs is not tried again: %+v", e)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the push took %v", took)
	}
	if e := report.Endpoints[0]; e.Pause > 250*time.Millisecond {
		t.Errorf("the good replica was paused for %v while another hung", e.Pause)
	}
}

// TestTheTrainerFails: that is no fault of a replica, which stays shut and is neither blamed nor trusted.
func TestTheTrainerFails(t *testing.T) {
	r := newRig(t, 1, nil)
	r.trainer.err = errors.New("trainer is gone")
	report, err := r.push(t, 1, 0)
	if milepost.KindOf(err) != milepost.KindUnavailable || report.Endpoints[0].Attempts != 1 {
		t.Errorf("error %v, report %+v", err, report)
	}
	if told := r.gate.of(r.servers[0]); !slices.Equal(told, []string{"shut"}) {
		t.Errorf("gate %v", told)
	}
	r.trainer.err, r.trainer.weight = nil, math.NaN()
	if _, err := r.pusher.Push(t.Context(), 1, exported(t, 0, false), r.urls); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "mean logprob gap +Inf") {
		t.Errorf("logprobs that are no numbers: %v", err)
	}
}

// TestOtherVersion: a server that samples under another version than it was told is not believed.
func TestOtherVersion(t *testing.T) {
	r := newRig(t, 1, nil)
	r.servers[0].keepVersion = true
	if _, err := r.push(t, 3, 0); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "under version 0, pushed was 3") {
		t.Errorf("error %v", err)
	}
}

// TestServerIsResumedWhateverFails: it is never left standing, and what it samples after a load that broke off carries
// the unknown version.
func TestServerIsResumedWhateverFails(t *testing.T) {
	once := func(c *Config) { c.Repeats = 0 }
	for path, version := range map[string]string{"/pause": "default", "/collective_rpc": "v2147483647", "/reset_prefix_cache": "v2147483647", "/update_weight_version": "default"} {
		r := newRig(t, 1, once)
		r.servers[0].fail = path
		_, err := r.push(t, 1, 0)
		calls := r.servers[0].calls
		if milepost.KindOf(err) != milepost.KindUnavailable || calls[len(calls)-1] != "/resume" || r.servers[0].version != version {
			t.Errorf("%s fails: %v, calls %v, version %s", path, err, calls, r.servers[0].version)
		}
	}
	r := newRig(t, 1, func(c *Config) { c.ReloadTimeout = 20 * time.Millisecond })
	r.servers[0].hang = "/collective_rpc"
	_, err := r.push(t, 1, 0)
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "no answer within 20ms") || !slices.Contains(r.servers[0].calls, "/resume") {
		t.Errorf("a reload that hangs: %v, calls %v", err, r.servers[0].calls)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r = newRig(t, 1, nil)
	r.servers[0].hang = "/collective_rpc"
	_, err = r.pusher.Push(ctx, 1, exported(t, 0, false), r.urls)
	if told := r.gate.of(r.servers[0]); err == nil || !slices.Contains(r.servers[0].calls, "/resume") || !slices.Equal(told, []string{"shut"}) {
		t.Errorf("the caller gave up: %v, calls %v, gate %v", err, r.servers[0].calls, told)
	}
}

func TestRequestsInFlight(t *testing.T) {
	for mode, want := range map[string]milepost.Kind{InFlightRecompute: "", InFlightRefuse: milepost.KindConflict} {
		r := newRig(t, 1, func(c *Config) { c.InFlight = mode })
		r.servers[0].busy = true
		if _, err := r.push(t, 1, 0); milepost.KindOf(err) != want {
			t.Errorf("%s: %v, want kind %q", mode, err, want)
		}
	}
}

func TestPushRefusesBadInput(t *testing.T) {
	r := newRig(t, 1, nil)
	dir := exported(t, 0, false)
	for _, c := range []struct {
		version int32
		dir     string
		urls    []string
		kind    milepost.Kind
	}{
		{-1, dir, r.urls, milepost.KindInvalid},
		{Unknown, dir, r.urls, milepost.KindInvalid},
		{1, "relative", r.urls, milepost.KindInvalid},
		{1, t.TempDir(), r.urls, milepost.KindNotFound},
		{1, dir, nil, milepost.KindInvalid},
		{1, dir, []string{r.urls[0], r.urls[0]}, milepost.KindInvalid},
		{1, dir, []string{r.urls[0], "nowhere"}, milepost.KindInvalid},
	} {
		if _, err := r.pusher.Push(t.Context(), c.version, c.dir, c.urls); milepost.KindOf(err) != c.kind {
			t.Errorf("version %d of %s to %v: %v, want %s", c.version, c.dir, c.urls, err, c.kind)
		}
	}
	if len(r.servers[0].calls)+len(r.gate.told) != 0 {
		t.Errorf("a refused push touched the server or the gate: %v, %v", r.servers[0].calls, r.gate.told)
	}
}

func TestConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"method":         func(c *Config) { c.Method = "pigeon" },
		"repeats":        func(c *Config) { c.Repeats = -1 },
		"in_flight":      func(c *Config) { c.InFlight = "keep" },
		"reload_timeout": func(c *Config) { c.ReloadTimeout = 0 },
		"backend":        func(c *Config) { c.Transfer.Backend = "mpi" },
		"host is empty":  func(c *Config) { c.Transfer.Host = "" },
		"port is -1":     func(c *Config) { c.Transfer.Port = -1 },
		"timeout is 0":   func(c *Config) { c.Transfer.Timeout = 0 },
		"buffer_mb":      func(c *Config) { c.Transfer.BufferMB = 0 },
		"prompts is 0":   func(c *Config) { c.Canary.Prompts = 0 },
		"vocabulary":     func(c *Config) { c.Canary.Vocab = 0 },
		`dtype "int4"`:   func(c *Config) { c.Canary.DType = "int4" },
		"bound is -1":    func(c *Config) { c.Canary.Bound = -1 },
	} {
		cfg := DefaultConfig()
		cfg.Canary.Vocab = 340
		change(&cfg)
		if _, err := New(Disk{}, cfg, Deps{Scorer: &trainer{}}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want KindInvalid with %q", err, want)
		}
	}
	if n, err := Vocab(exported(t, 0, false)); n != 340 || err != nil {
		t.Errorf("vocabulary %d, %v", n, err)
	}
	if _, err := Vocab(t.TempDir()); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no config.json: %v", err)
	}
}
