package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/rollout/remote"
	"github.com/milepost-rl/milepost/shadow"
)

// knowing is a scripted model that has the tasks whole, which no worker gets.
type knowing struct {
	rollout.Model
	tasks map[string]*milepost.Task
}

func (k knowing) Open(ctx context.Context, o rollout.Opening) (rollout.Conversation, error) {
	o.Task = k.tasks[o.Task.ID]
	return k.Model.Open(ctx, o)
}

// TestCreditsOfRemoteEpisodes: episodes of a scripted expert that ran at a worker have the credit of those that ran in the
// run's own process, to the last digit.
func TestCreditsOfRemoteEpisodes(t *testing.T) {
	needSandbox(t)
	set := filepath.Join(t.TempDir(), "tasks")
	if code, out, errs := milepostRun(t, "tasks", "make", "micro", "--out", set, "--count", "3", "--faults", "2", "--files", "2", "--distractors", "0"); code != exitDone {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	tasks, err := benchmarks.Load(set)
	if err != nil {
		t.Fatal(err)
	}
	here, there := creditsOf(t, tasks, remote.ModeLocal), creditsOf(t, tasks, remote.ModeRemote)
	if len(here) != len(there) || len(here) < 1000 {
		t.Errorf("%d and %d bytes of credit", len(here), len(there))
	}
	for i := range min(len(here), len(there)) {
		if here[i] != there[i] {
			t.Fatalf("here  …%.300s\nthere …%.300s", here[max(0, i-100):], there[max(0, i-100):])
		}
	}
}

// creditsOf runs groups of episodes and returns their credit as JSON.
func creditsOf(t *testing.T, tasks []*milepost.Task, mode remote.Mode) string {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := configs.Default()
	cfg.Probes.Prober.Merge, cfg.Probes.Prober.Recheck, cfg.Probes.Server.Listen, cfg.Workers.Mode = 1, 0, true, mode
	cfg.Workers.Worker.Slots = 2
	warn := func(err error) { t.Errorf("warning: %v", err) }
	dir := t.TempDir()
	w, err := openWorld(cfg, filepath.Join(dir, "run"))
	ok(err)
	defer func() { ok(w.close()) }()
	probes, err := openProbing(t.Context(), cfg, w, filepath.Join(dir, "run"), "credits", 1, tasks, warn)
	ok(err)
	defer func() { ok(probes.close()) }()
	model, err := expert.New(cfg.RFT.Expert)
	ok(err)
	pool, err := policy.NewPool(cfg.Policy.Pool, policy.PoolDeps{})
	ok(err)
	byID, specs := orchestrator.Attempts(orchestrator.PurposeTrain, tasks, 4, 7)
	whole := knowing{model, byID}
	deps := orchestrator.Deps{}
	if mode == remote.ModeLocal {
		deps.Rollouts, err = newRollouts(cfg, w, whole, probes)
		ok(err)
	} else {
		stop, err := openRollouts(cfg, w, &serving{pool: pool}, probes, &deps)
		ok(err)
		defer func() { ok(stop()) }()
		connect := shadow.DefaultConnect()
		connect.URL = probes.server.URL()
		nc, err := shadow.Connect(connect)
		ok(err)
		defer nc.Close()
		far, err := openWorld(cfg, filepath.Join(dir, "worker"))
		ok(err)
		defer func() { ok(far.close()) }()
		worker, err := newRolloutWorker(cfg, far, nc, "", func(remote.Settings) (remote.Policy, error) { return ownPolicy{whole}, nil }, warn)
		ok(err)
		end := inBackground(worker.Run)
		defer func() { ok(end()) }()
	}
	eps, err := orchestrator.Collect(t.Context(), deps.Rollouts, probes, byID, specs, orchestrator.Bounds{Concurrency: 4, Barrier: 2 * time.Minute}, nil)
	ok(err)
	inputs := make([]credit.Input, len(eps))
	for i, ep := range eps {
		base, err := probes.Baseline(t.Context(), byID[ep.Task])
		ok(err)
		inputs[i] = credit.Input{Episode: ep, Task: byID[ep.Task], Baseline: base}
	}
	engine, err := credit.New(cfg.Credit)
	ok(err)
	result, err := engine.Assign(inputs)
	ok(err)
	text, err := json.Marshal(result.Episodes)
	ok(err)
	return string(text)
}

// TestE2ERolloutWorkers trains for two updates with all episodes at worker processes, one of which is killed in the middle.
func TestE2ERolloutWorkers(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server, which takes a minute: set MILEPOST_E2E=1")
	}
	needSandbox(t)
	top := t.TempDir()
	mark := "e2e-" + filepath.Base(filepath.Dir(top))
	t.Cleanup(func() { (&scenario{t: t, mark: mark, dir: filepath.Join(top, "q")}).end() })
	tasks, model := smallPolicy(t, top, "rft.sft.steps=20") // enough for some calls to be valid
	dir, port := filepath.Join(top, "run"), freePort(t)
	url := fmt.Sprint("nats://127.0.0.1:", port)
	train := startProcess(t, mark, arguments("train", "run.dir="+dir, "model="+model, "tasks.train="+tasks, "schedule.max_updates=2", "schedule.eval_every=0",
		"rollout.tool_wait=500ms", "workers.mode=remote", "workers.lease=3s", "probes.server.listen=true", fmt.Sprint("probes.server.port=", port))...)
	train.until("NATS", time.Minute, func() bool {
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	worker := func(name string) *process {
		return startProcess(t, mark, "worker", "rollout", "--nats", url, "--slots", "3", "--name", name, "--dir", filepath.Join(top, name),
			"-c", "quickstart", "--set", "workers.worker.heartbeat=500ms")
	}
	first, second := worker("first"), worker("second")
	train.until("the first episodes", 5*time.Minute, func() bool { return inTheMiddle(t, dir, 1) })
	first.kill() // with an episode in each slot: those of update 1 are far from over
	first.wait(10 * time.Second)
	again := worker("first") // takes part, and clears what the killed one left
	if code, out, errs := milepostRun(t, "worker", "list", "--nats", url, "--wait", "3s"); code != exitDone || !strings.Contains(out, "rollout") || !strings.Contains(out, "shadow") {
		t.Errorf("worker list: exit code %d: %s%s", code, out, errs) // a shadow worker tells of itself every two seconds
	}
	if code := train.wait(10 * time.Minute); code != exitDone {
		t.Fatalf("exit code %d; it said:\n%s\nthe worker said:\n%s", code, train.out.String(), second.out.String())
	}
	ended := map[string]int{}
	for _, e := range events(t, dir) {
		if e.Type == orchestrator.EventEpisodeEnded {
			ended[e.Episode]++
			if e.Status != milepost.EpisodeCompleted && e.Status != milepost.EpisodeLimit || ended[e.Episode] > 1 {
				t.Errorf("%+v", e)
			}
		}
	}
	metrics, err := (&orchestrator.Folder{Dir: dir}).Metrics()
	if err != nil {
		t.Fatal(err)
	}
	total := map[string]float64{}
	for _, line := range metrics {
		for _, name := range []string{"worker_ended", "worker_lost", "worker_handed_out"} {
			total[name] += line[name]
		}
	}
	if total["worker_ended"] != 2*e2eGroups*e2eGroup || total["worker_lost"] == 0 || total["worker_handed_out"] != total["worker_ended"]+total["worker_lost"] {
		t.Errorf("%v, %d episodes ended", total, len(ended))
	}
	for _, w := range []*process{again, second} { // their server is gone with the run
		w.terminate()
		if code := w.wait(time.Minute); code != exitDone {
			t.Errorf("a worker: exit code %d: %s", code, w.out.String())
		}
	}
	t.Logf("%v", total)
	nothingLeft(t, mark, top)
}

// smallPolicy makes a task set and a policy that can act in it; set is what its making differs in.
func smallPolicy(t *testing.T, top string, set ...string) (tasks, model string) {
	t.Helper()
	tasks, model = filepath.Join(top, "tasks"), filepath.Join(top, "policy")
	for _, args := range [][]string{
		{"tasks", "make", "micro", "--out", tasks, "--count", "32", "--faults", "2", "--files", "2", "--distractors", "0"},
		append(arguments("rft", append(set, "run.dir="+filepath.Join(top, "rft"), "tasks.train="+tasks)...), "--out", model),
	} {
		if code, out, errs := milepostRun(t, args...); code != exitDone {
			t.Fatalf("%v: exit code %d: %s%s", args, code, out, errs)
		}
	}
	return tasks, model
}

// TestTheRunsOwnWorkerTakesNoOtherRuns: in mode both the worker of the run's process, which samples from the run's pool, says
// and knows that it is the run's alone.
func TestTheRunsOwnWorkerTakesNoOtherRuns(t *testing.T) {
	needSandbox(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := configs.Default()
	cfg.Probes.Server.Listen, cfg.Workers.Mode = true, remote.ModeBoth
	warn := func(err error) { t.Errorf("warning: %v", err) }
	dir := filepath.Join(t.TempDir(), "run")
	w, err := openWorld(cfg, dir)
	ok(err)
	defer func() { ok(w.close()) }()
	probes, err := openProbing(t.Context(), cfg, w, dir, "mine", 1, nil, warn)
	ok(err)
	defer func() { ok(probes.close()) }()
	pool, err := policy.NewPool(cfg.Policy.Pool, policy.PoolDeps{})
	ok(err)
	beats, err := probes.nc.SubscribeSync(cfg.Probes.Prober.Streams.Prefix + ".rollout.worker.*")
	ok(err)
	stop, err := openRollouts(cfg, w, &serving{pool: pool}, probes, &orchestrator.Deps{})
	ok(err)
	defer func() { ok(stop()) }()
	beat, err := beats.NextMsg(10 * time.Second)
	ok(err)
	var says struct{ Only string }
	ok(json.Unmarshal(beat.Data, &says))
	if says.Only != "mine" {
		t.Errorf("its heartbeat %s has no only: mine", beat.Data)
	}
}
