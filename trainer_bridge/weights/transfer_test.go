package weights

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// sender is the trainer's end: what it sends over a link arrives at the fake server that joined it.
type sender struct {
	trainer

	mu     sync.Mutex
	offers []trainerbridge.TransferOffer
	links  map[int64]chan float64
	broken int   // so many sends break off
	err    error // of Open and Plan
	own    error // of Send: the trainer's own
}

func (s *sender) TransferOpen(_ context.Context, o trainerbridge.TransferOffer) (trainerbridge.TransferInvitation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers = append(s.offers, o)
	n := int64(len(s.offers))
	s.links[n] = make(chan float64)
	in := trainerbridge.TransferInvitation{Link: n, Port: 4711, Group: fmt.Sprint(n)}
	if o.Backend == BackendNCCL {
		in = trainerbridge.TransferInvitation{Link: n, NCCLUniqueID: fmt.Sprint(n)}
	}
	return in, s.err
}

func (s *sender) TransferPlan(_ context.Context, dir string) (trainerbridge.TransferPlan, error) {
	return trainerbridge.TransferPlan{Names: []string{"w"}, DTypes: []string{"float32"}, Shapes: [][]int64{{2, 3}}, SHA256: "of " + dir}, s.err
}

func (s *sender) TransferSend(ctx context.Context, link int64, dir, plan string) (int64, error) {
	s.mu.Lock()
	to, broken := s.links[link], s.broken > 0
	s.broken--
	s.mu.Unlock()
	if s.own != nil {
		return 0, s.own
	}
	if plan != "of "+dir {
		return 0, milepost.E("fake", milepost.KindConflict, "another plan")
	}
	if broken {
		return 0, milepost.E("fake", milepost.KindUnavailable, "the transfer broke off after 0 bytes")
	}
	data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return 0, milepost.Wrap("fake", milepost.KindNotFound, err)
	}
	var weight float64
	_, _ = fmt.Sscan(string(data), &weight)
	select {
	case to <- weight:
		return 24, nil
	case <-ctx.Done():
		return 0, milepost.Wrap("fake", milepost.KindCanceled, ctx.Err())
	case <-time.After(5 * time.Second):
		return 0, milepost.E("fake", milepost.KindUnavailable, "nobody received")
	}
}

// receiver is the fake server's end of the transfer routes.
type receiver struct {
	from   *sender
	joined chan float64 // nil = no group
	info   map[string]any
	active bool
}

// route answers a transfer route, false where the path is another; s.mu is held and let go of while it waits.
func (s *server) route(w http.ResponseWriter, r *http.Request, body []byte) bool {
	x := s.transfer
	fail := func(text string) bool {
		http.Error(w, text, http.StatusInternalServerError)
		return true
	}
	switch r.URL.Path {
	case "/get_world_size":
		_, _ = fmt.Fprint(w, `{"world_size": 2}`)
	case "/init_weight_transfer_engine":
		var in struct {
			Info map[string]any `json:"init_info"`
		}
		_ = json.Unmarshal(body, &in)
		x.info = in.Info
		var n int64
		for _, key := range []string{"group", "nccl_unique_id_b64"} {
			_, _ = fmt.Sscan(fmt.Sprint(in.Info[key]), &n)
		}
		x.from.mu.Lock()
		x.joined = x.from.links[n]
		x.from.mu.Unlock()
	case "/start_weight_update":
		if x.active {
			return fail("already active")
		}
		if x.joined == nil {
			return fail("in no group")
		}
		x.active = true
	case "/update_weights":
		joined := x.joined
		s.mu.Unlock()
		weight, ok := 0.0, false
		select {
		case weight = <-joined:
			ok = true
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if !ok {
			x.active = false
			return fail("the trainer left")
		}
		s.weight = weight
	case "/finish_weight_update":
		if !x.active {
			return fail("not active")
		}
		x.active = false
	default:
		return false
	}
	return true
}

type transferRig struct {
	*rig

	sender *sender
}

func newTransferRig(t *testing.T, servers int, backend string) *transferRig {
	paused.Store(0)
	r := newRig(t, servers, nil)
	x := &transferRig{rig: r, sender: &sender{links: map[int64]chan float64{}}}
	r.trainer = &x.sender.trainer
	for _, s := range r.servers {
		s.transfer = &receiver{from: x.sender}
	}
	cfg := r.pusher.cfg
	cfg.Method, cfg.Transfer.Backend, cfg.Transfer.BufferMB, cfg.Transfer.Timeout = MethodTransfer, backend, 3, 2*time.Second
	method, err := NewMethod(cfg, x.sender)
	if err != nil {
		t.Fatal(err)
	}
	if r.pusher, err = New(method, cfg, Deps{Scorer: x.sender, Gate: r.gate, HTTP: r.pusher.deps.HTTP}); err != nil {
		t.Fatal(err)
	}
	return x
}

func count(calls []string, path string) (n int) {
	for _, c := range calls {
		if c == path {
			n++
		}
	}
	return n
}

func TestTransfer(t *testing.T) {
	x := newTransferRig(t, 2, BackendGloo)
	x.mustPush(t, 1, 0.5)
	report := x.mustPush(t, 2, 0.7)
	want := []string{
		"/pause?clear_cache=true&mode=keep", "/update_weight_version", "/start_weight_update", "/update_weights", "/finish_weight_update",
		"/reset_prefix_cache?reset_running_requests=true", "/update_weight_version", "/resume",
	}
	first := append([]string{"/get_world_size", "/init_weight_transfer_engine"}, want...)
	for i, s := range x.servers {
		if s.weight != 0.7 || s.version != "v2" || !slices.Equal(s.calls, append(first, want...)) {
			t.Errorf("server %d: weight %v, version %s, calls %v", i, s.weight, s.version, s.calls)
		}
		info := s.transfer.info
		if info["master_address"] != "127.0.0.1" || info["master_port"] != 4711.0 || info["rank_offset"] != 1.0 || info["world_size"] != 3.0 ||
			info["packed_buffer_size_bytes"] != 3.0*(1<<20) || info["timeout_seconds"] != 2.0 {
			t.Errorf("server %d was told %v", i, info)
		}
	}
	if len(x.sender.offers) != 2 || x.sender.offers[0].Workers != 2 || report.Method != "transfer" || report.Load <= 0 {
		t.Errorf("offers %+v, report %+v", x.sender.offers, report)
	}
	if most := max(x.servers[0].most.Load(), x.servers[1].most.Load()); most != 1 {
		t.Errorf("%d replicas were paused at once; the trainer sends to one after the other", most)
	}
}

func TestTransferNCCL(t *testing.T) {
	x := newTransferRig(t, 1, BackendNCCL)
	x.mustPush(t, 1, 0.5)
	if got, want := fmt.Sprint(x.servers[0].transfer.info), "map[nccl_unique_id_b64:1 packed:true packed_buffer_size_bytes:3.145728e+06 packed_num_buffers:2 rank_offset:1 world_size:3]"; got != want {
		t.Errorf("vLLM's engine was told %s, want %s", got, want)
	}
}

// TestTransferMeetsARestartedEnd: a server or trainer that was started anew has left the group; joining again is no failed
// attempt.
func TestTransferMeetsARestartedEnd(t *testing.T) {
	for name, restart := range map[string]func(*transferRig){
		"server":                                func(x *transferRig) { x.servers[0].transfer.joined = nil },
		"trainer":                               func(x *transferRig) { x.sender.broken = 1 },
		"an update that a killed program began": func(x *transferRig) { x.servers[0].transfer.active = true },
	} {
		x := newTransferRig(t, 1, BackendGloo)
		x.mustPush(t, 1, 0.5)
		restart(x)
		report := x.mustPush(t, 2, 0.7)
		if e := report.Endpoints[0]; e.Attempts != 1 || !e.Approved || x.servers[0].weight != 0.7 || x.servers[0].transfer.active {
			t.Errorf("%s: %+v, weight %v", name, e, x.servers[0].weight)
		}
	}
}

// TestTransferBreaksOff: the replica is pushed again over a new group, then quarantined; it is left resumed and its
// update ended.
func TestTransferBreaksOff(t *testing.T) {
	x := newTransferRig(t, 1, BackendGloo)
	x.sender.broken = 1
	if e := x.mustPush(t, 1, 0.5).Endpoints[0]; e.Attempts != 2 || len(x.sender.offers) != 2 || !strings.Contains(e.Error, "broke off") {
		t.Errorf("%+v after %d offers", e, len(x.sender.offers))
	}
	x.sender.broken = 9
	_, err := x.push(t, 2, 0.7)
	s := x.servers[0]
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "broke off") || s.calls[len(s.calls)-1] != "/resume" || s.transfer.active {
		t.Errorf("error %v, calls %v, active %v", err, s.calls, s.transfer.active)
	}
	if told := x.gate.of(s); !slices.Equal(told, []string{"shut", "quarantine v1", "shut", "approve v1", "shut", "quarantine v2", "shut", "quarantine v2"}) {
		t.Errorf("gate %v", told)
	}
	x.sender.broken = 0
	x.mustPush(t, 3, 0.9)
}

// TestTransferOfADamagedDirectory: what the trainer sends is not what it holds.
func TestTransferOfADamagedDirectory(t *testing.T) {
	x := newTransferRig(t, 1, BackendGloo)
	x.mustPush(t, 1, 0.5)
	x.sender.weight = 0.7
	report, err := x.pusher.Push(t.Context(), 2, exported(t, 0.6, false), x.urls)
	if milepost.KindOf(err) != milepost.KindCorrupt || report.RolledBack != 1 || x.servers[0].weight != 0.5 || x.servers[0].version != "v1" {
		t.Errorf("error %v, rolled back to %d, weight %v", err, report.RolledBack, x.servers[0].weight)
	}
	x.mustPush(t, 2, 0.7)
}

// TestTransferWithoutTheTrainer: no replica is blamed.
func TestTransferWithoutTheTrainer(t *testing.T) {
	x := newTransferRig(t, 1, BackendGloo)
	x.sender.err = milepost.E("fake", milepost.KindInvalid, "no GPU")
	_, err := x.push(t, 1, 0.5)
	if told := x.gate.of(x.servers[0]); milepost.KindOf(err) != milepost.KindInvalid || !slices.Equal(told, []string{"shut"}) || count(x.servers[0].calls, "/resume") != 0 {
		t.Errorf("error %v, gate %v", err, told)
	}
}

// TestTransferOfATrainerThatFails: what it cannot read is no replica's fault, a link or plan that is out of date is.
func TestTransferOfATrainerThatFails(t *testing.T) {
	for kind, blamed := range map[milepost.Kind]bool{
		milepost.KindNotFound: false, milepost.KindCorrupt: false, milepost.KindInvalid: false, milepost.KindInternal: false,
		milepost.KindUnavailable: true, milepost.KindConflict: true,
	} {
		x := newTransferRig(t, 1, BackendGloo)
		x.mustPush(t, 1, 0.5)
		x.sender.own = milepost.E("fake", kind, "it failed")
		report, err := x.push(t, 2, 0.7)
		s := x.servers[0]
		if milepost.KindOf(err) != kind || report.Endpoints[0].Quarantined != blamed || s.calls[len(s.calls)-1] != "/resume" || s.transfer.active {
			t.Errorf("%s: %v, %+v, calls %v", kind, err, report.Endpoints[0], s.calls)
		}
		x.sender.own = nil
		x.mustPush(t, 3, 0.9)
	}
}

func TestTransferReach(t *testing.T) {
	for _, c := range []struct {
		backend, host, server string
		ok                    bool
	}{
		{BackendGloo, "127.0.0.1", "http://localhost:8000", true},
		{BackendGloo, "127.0.0.1", "http://10.0.0.2:8000", false},
		{BackendGloo, "::1", "http://gpu-3:8000", false},
		{BackendGloo, "10.0.0.1", "http://10.0.0.2:8000", true},
		{BackendNCCL, "127.0.0.1", "http://10.0.0.2:8000", true}, // they meet by the id alone
	} {
		cfg := DefaultTransferConfig()
		cfg.Backend, cfg.Host = c.backend, c.host
		if err := cfg.Reach([]string{"http://127.0.0.1:1", c.server}); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), c.server) {
			t.Errorf("%s at %s, server %s: %v", c.backend, c.host, c.server, err)
		}
	}
}
