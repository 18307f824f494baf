package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/shadow"
)

// scraped reads the endpoint whose address a command printed, and that it is healthy.
func scraped(t *testing.T, said string) string {
	t.Helper()
	m := regexp.MustCompile(`metrics for Prometheus: (http://\S+/)metrics`).FindStringSubmatch(said)
	if m == nil {
		t.Fatalf("no address in %s", said)
	}
	get := func(path string) (int, string) {
		resp, err := http.Get(m[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if code, text := get("healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, text)
	}
	_, text := get("metrics")
	return text
}

// submitting ends every episode at once.
type submitting struct{}

func (submitting) Run(_ context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	return &milepost.Episode{ID: spec.ID, Status: milepost.EpisodeCompleted, Steps: make([]milepost.Step, 2)}, nil
}

// fakeTracker answers every line and keeps it; it stands in for Python.
const fakeTracker = `#!/bin/sh
read -r hello
echo "$hello" > "$0.hello"
echo '{"ready":0}'
while read -r line; do
  echo "$line" >> "$0.lines"
  echo "{\"done\":$(echo "$line" | sed 's/.*"end":\([0-9]*\).*/\1/')}"
done
`

// TestWatch wires a run's parts with both kinds of watchers and reads what these have.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "python")
	if err := os.WriteFile(python, []byte(fakeTracker), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := configs.Load("quickstart", []string{"metrics.listen=127.0.0.1:0", "trackers.wandb.enabled=true", "trackers.python=" + python, "probes.connect.url=nats://sesame@example.org:4222",
		"probes.server.token=open", "server.env={HF_TOKEN: simsim}"})
	if err != nil {
		t.Fatal(err)
	}
	folder, err := orchestrator.OpenFolder(filepath.Join(dir, "run"), orchestrator.Header{Name: "watched", Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	pools := policy.DefaultPoolConfig()
	pools.URLs = []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}
	pool, err := policy.NewPool(pools, policy.PoolDeps{})
	if err != nil {
		t.Fatal(err)
	}
	pool.Trust("http://127.0.0.1:1")
	probes := &probing{stop: func() error { return nil }}
	server := shadow.DefaultServer()
	server.Dir = filepath.Join(dir, "nats")
	cfg2 := cfg
	cfg2.Probes.Connect.URL, cfg2.Probes.Server, cfg2.Probes.Local = "", server, false
	w, err := openWorld(cfg2, filepath.Join(dir, "world"))
	if err != nil {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	if probes, err = openProbing(t.Context(), cfg2, w, dir, "watched-1", 1, nil, func(e error) { t.Error(e) }); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := probes.close(); err != nil {
			t.Error(err)
		}
	}()
	var said bytes.Buffer
	watch, err := openWatch(cfg, folder, probes, pool, newProgress(&said))
	if err != nil {
		t.Fatal(err)
	}
	deps := watch.over(orchestrator.Deps{Rollouts: submitting{}})
	if _, err := deps.Rollouts.Run(t.Context(), nil, orchestrator.EpisodeSpec{ID: "e", Purpose: orchestrator.PurposeTrain}); err != nil {
		t.Fatal(err)
	}
	deps.Report(orchestrator.Status{Phase: orchestrator.PhaseTraining, Update: 4, MaxUpdates: 9, Version: 3})
	line := `{"update":4,"part":"update","time":"2026-11-30T01:02:03Z","active":1,"values":{"loss":0.5}}`
	if err := os.WriteFile(folder.Path("metrics.jsonl"), []byte(line+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	deps.Recorded(orchestrator.MetricsLine{Update: 4, Part: orchestrator.PartUpdate, Values: map[string]float64{"loss": .5}})
	text := scraped(t, said.String())
	for _, want := range []string{`milepost_update 4`, `milepost_phase{phase="updating"} 1`, `milepost_replicas{state="open"} 1`, `milepost_replicas{state="joining"} 1`, `milepost_turns_total{purpose="train"} 2`,
		`milepost_last_loss 0.5`, `milepost_tracker_warnings_total{tracker="wandb"} 0`, `milepost_probe_workers 0`, `go_goroutines `} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("Prometheus does not read %q in\n%s", want, text)
		}
	}
	began := time.Now()
	if err := watch.close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("closing took %s", took)
	}
	hello, err := os.ReadFile(python + ".hello")
	if err != nil || !strings.Contains(string(hello), `"name":"watched"`) || !strings.Contains(string(hello), "nats://***@example.org") || strings.Contains(string(hello), "sesame") ||
		!strings.Contains(string(hello), `"token":"***"`) || !strings.Contains(string(hello), `"HF_TOKEN":"***"`) || strings.Contains(string(hello), "simsim") || cfg.Server.Env["HF_TOKEN"] != "simsim" {
		t.Errorf("the tracker was told %s (%v)", hello, err)
	}
	if lines, err := os.ReadFile(python + ".lines"); err != nil || !strings.Contains(string(lines), `"scalars":{"update/loss":0.5},"step":4`) {
		t.Errorf("the tracker got %s (%v); said %s", lines, err, said.String())
	}
}
