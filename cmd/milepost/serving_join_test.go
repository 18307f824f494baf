package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/shadow"
)

// joinRig is a replica of this machine, and a messenger over which others join.
func joinRig(t *testing.T) (r *replicaRig, url string) {
	t.Helper()
	cfg := shadow.DefaultServer()
	cfg.Dir, cfg.Listen = t.TempDir(), true
	server, err := shadow.StartServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := server.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	r = newReplicaRig(t, func(c *configs.Run) {
		c.Server.Replicas = 1
		c.Serve.Heartbeat, c.Serve.Lease = 100*time.Millisecond, time.Second
	})
	r.until("joining v-1")
	r.push(0)
	stop, err := r.accept(nc, "r", 1, r.model)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); nc.Close() })
	return r, server.URL()
}

// serveWorker starts `milepost worker serve` over a stand-in that runs already.
func serveWorker(t *testing.T, nats, port string, args ...string) *process {
	t.Helper()
	return startProcess(t, "serve", append([]string{"worker", "serve", "--nats", nats, "--url", "http://127.0.0.1:" + port, "--name", "far",
		"--set", "serve.heartbeat=100ms", "--set", "serve.lease=1s", "-c", "quickstart"}, args...)...)
}

func TestAServerJoinsARunAndLeavesIt(t *testing.T) {
	r, nats := joinRig(t)
	w := serveWorker(t, nats, startStandIn(t, t.TempDir()), "--run", "r")
	r.until("open v0", "open v0")
	if f := r.push(1); f["replicas_open"] != 2 {
		t.Errorf("figures %v, want both open", f)
	}
	if code, out := command(t, "worker", "list", "--nats", nats, "--wait", "500ms"); code != exitDone || !strings.Contains(out, "far   serve") {
		t.Errorf("exit code %d; the list does not show it:\n%s", code, out)
	}
	w.interrupt()
	if code := w.wait(10 * time.Second); code != exitDone {
		t.Errorf("exit code %d; it said:\n%s", code, w.out.String())
	}
	r.until("open v1")
	r.push(2)
	for _, says := range []string{"vLLM far joins", "vLLM far: weights v0 are served; canary agrees", "vLLM far leaves"} {
		if !strings.Contains(r.said.String(), says) {
			t.Errorf("nobody said %q:\n%s", says, r.said.String())
		}
	}
}

// A worker that is killed is silent; its server comes back with the next one.
func TestAKilledServerIsGoneAndComesBack(t *testing.T) {
	r, nats := joinRig(t)
	port := startStandIn(t, t.TempDir())
	w := serveWorker(t, nats, port)
	r.until("open v0", "open v0")
	w.kill()
	r.until("open v0")
	if f := r.push(1); f["replicas_open"] != 1 {
		t.Errorf("figures %v, want the one that is left", f)
	}
	serveWorker(t, nats, port)
	r.until("open v1", "open v1")
}

func TestAServerOfAnotherVocabularyIsRefused(t *testing.T) {
	r, nats := joinRig(t)
	dir := t.TempDir()
	port := startStandIn(t, dir)
	write(t, filepath.Join(dir, port+".other"), "")
	w := serveWorker(t, nats, port, "--run", "r")
	if code := w.wait(20 * time.Second); code != exitFailed || !strings.Contains(w.out.String(), "run r refuses this server") || !strings.Contains(w.out.String(), "has another tokenizer than the run's servers") {
		t.Errorf("exit code %d; it said:\n%s", code, w.out.String())
	}
	model := newTrainable(t).model
	write(t, filepath.Join(model, "config.json"), `{"vocab_size": 99}`)
	w = serveWorker(t, nats, startStandIn(t, t.TempDir()), "--run", "r", "--model", model)
	if code := w.wait(20 * time.Second); code != exitFailed || !strings.Contains(w.out.String(), "its model has a vocabulary of 99 tokens, the run's 0") {
		t.Errorf("exit code %d; it said:\n%s", code, w.out.String())
	}
	r.until("open v0")
}

// A joiner at the address of one that is up may be that one, started anew under another name, and is tried again; the servers
// that the run started keep name and address.
func TestThePlaceOfAJoiner(t *testing.T) {
	gone := &replica{name: "gone", url: "http://a", lost: errors.New("silent")}
	up := &replica{name: "up", url: "http://b", up: true}
	own := &replica{name: "vllm-0", url: "http://c", started: true}
	drains := &replica{name: "drains", url: "http://f"}
	j := &joined{serving: &serving{replicas: []*replica{gone, up, own, drains}}}
	for _, c := range []struct {
		name, url string
		want      milepost.Kind // "" = it joins
		is        *replica
	}{
		{"up2", "http://b", milepost.KindUnavailable, nil},
		{"drains2", "http://f", milepost.KindUnavailable, nil},
		{"vllm-0", "http://d", milepost.KindConflict, nil},
		{"other", "http://c", milepost.KindConflict, nil},
		{"up", "http://b", "", up},
		{"gone", "http://e", "", gone},
		{"gone2", "http://a", "", nil},
	} {
		r, err := j.place(c.name, c.url)
		switch {
		case c.want != "":
			if milepost.KindOf(err) != c.want {
				t.Errorf("%s at %s: %v, want %s", c.name, c.url, err, c.want)
			}
		case err != nil || r.name != c.name || r.url != c.url || c.is != nil && r != c.is:
			t.Errorf("%s at %s: %+v, %v", c.name, c.url, r, err)
		}
	}
	if len(j.replicas) != 5 {
		t.Errorf("%d replicas, want one more", len(j.replicas))
	}
}
