package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/journal"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
)

// Sizes of the runs: small, and slow enough for a process to be killed in the middle of an update.
const (
	e2eUpdates = 3
	e2eGroups  = 4
	e2eGroup   = 6
)

// small are the settings on top of the shipped quickstart. The policy learns little from them, and need not: every part
// does its work all the same.
var small = []string{
	"rollout.max_turns=5", "rollout.max_tokens=200", "rollout.wall=10m",
	fmt.Sprintf("schedule.groups_per_update=%d", e2eGroups), fmt.Sprintf("schedule.group_size=%d", e2eGroup),
	"schedule.concurrency=4", fmt.Sprintf("schedule.max_updates=%d", e2eUpdates), "schedule.max_wall=0s", "schedule.eval_every=2",
	"schedule.eval_samples=2", "schedule.validation_samples=1", "schedule.barrier=60s",
	"rft.minimum=8", "rft.sft.steps=100", "rft.sft.batch_episodes=16",
	"micro.config.faults=2", "micro.config.files=2", "micro.config.distractors=0",
	"micro.demos=32", "micro.train=8", "micro.validation=3", "micro.heldout=4",
}

func arguments(command string, set ...string) []string {
	args := []string{command, "-c", "quickstart"}
	for _, s := range slices.Concat(small, set) {
		args = append(args, "--set", s)
	}
	return args
}

// scenario is one machine on which everything that a run is made of dies once.
type scenario struct {
	t    *testing.T
	mark string
	dir  string // of the quickstart
	run  string // its training run
	vllm serverIdentity
}

// TestE2EQuickstartSurvivesEverything runs a small quickstart with real vLLM, trainer, NATS, sandboxes and tests, and
// kills one process after the other. The subtests build on each other, so that vLLM, which takes one to two minutes to
// start, is started twice only. A skipped push is internal/vllm's e2e test.
func TestE2EQuickstartSurvivesEverything(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server twice, which takes minutes: set MILEPOST_E2E=1")
	}
	s := &scenario{t: t, dir: filepath.Join(t.TempDir(), "q")}
	s.mark = "e2e-" + filepath.Base(filepath.Dir(filepath.Dir(s.dir)))
	t.Cleanup(s.end)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"kill vLLM, then the orchestrator", s.killServerAndOrchestrator},
		{"kill worker and trainer, interrupt", s.killWorkerAndTrainer},
		{"resume adopts vLLM and ends", s.resume},
		{"a second quickstart reuses it all", s.again},
	} {
		if !t.Run(step.name, step.do) {
			return // the next steps stand on this one
		}
	}
}

// end ends what a failed step may have left, processes and mounts.
func (s *scenario) end() {
	top := filepath.Dir(s.dir)
	for _, name := range []string{"logs/vllm-*.json", "logs/trainer.json", "vllm.json"} { // of runs, and of worker serve
		paths, _ := filepath.Glob(filepath.Join(top, "*", name)) // the pattern is well formed
		for _, path := range paths {
			var id serverIdentity // a trainer's file is its identity alone
			b, _ := os.ReadFile(path)
			if json.Unmarshal(b, &id) == nil && id.Identity.PID == 0 {
				_ = json.Unmarshal(b, &id.Identity)
			}
			if _, err := supervise.Reap(context.Background(), []supervise.Identity{id.Identity}, time.Second); err != nil {
				s.t.Error(err)
			}
		}
	}
	left := leftovers(s.t, s.mark, top)
	slices.Reverse(left) // mounts upon others first
	for _, l := range left {
		if fields := strings.Fields(l); fields[0] == "mount" {
			_ = syscall.Unmount(fields[5], syscall.MNT_DETACH) // the removal of the folder tells
		}
	}
}

// killServerAndOrchestrator: vLLM killed in the first update is started again and gets the weights again; the
// orchestrator killed in the second leaves vLLM and trainer behind.
func (s *scenario) killServerAndOrchestrator(t *testing.T) {
	p := startProcess(t, s.mark, arguments("quickstart", "run.dir="+s.dir)...)
	p.until("rollouts of update 1", 8*time.Minute, func() bool {
		runs, err := filepath.Glob(filepath.Join(s.dir, "run-*"))
		if err != nil || len(runs) != 1 {
			return false
		}
		s.run = runs[0]
		return inTheMiddle(t, s.run, 1)
	})
	first := s.server(t)
	if err := syscall.Kill(-first.Identity.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.until("rollouts of update 2", 5*time.Minute, func() bool { return inTheMiddle(t, s.run, 2) })
	p.kill()
	if code := p.wait(10 * time.Second); code != -1 {
		t.Fatalf("exit code %d; it said:\n%s", code, p.out.String())
	}
	for _, says := range []string{"vLLM ended (signal: killed)", "weights v0 are served again; canary agrees"} {
		if !strings.Contains(p.out.String(), says) {
			t.Errorf("it does not say %q:\n%s", says, p.out.String())
		}
	}
	s.vllm = s.server(t)
	if s.vllm.Identity.PID == first.Identity.PID || !s.vllm.Identity.Alive() {
		t.Fatalf("after the kill of process %d vLLM is process %d, alive: %v", first.Identity.PID, s.vllm.Identity.PID, s.vllm.Identity.Alive())
	}
}

func (s *scenario) server(t *testing.T) serverIdentity {
	t.Helper()
	id := readIdentity(filepath.Join(s.dir, "logs", "vllm-0.json"))
	if id == nil {
		t.Fatal("the identity of vLLM is not stored")
	}
	return *id
}

// killWorkerAndTrainer trains another run against the server that the dead orchestrator left, by its address, with
// workers in processes of their own.
func (s *scenario) killWorkerAndTrainer(t *testing.T) {
	run := filepath.Join(filepath.Dir(s.dir), "b")
	port := freePort(t)
	set := []string{
		"run.dir=" + run, "model=" + s.artifact(t, "policy-*"), "tasks.train=" + s.artifact(t, "tasks-*/train"),
		fmt.Sprintf("server.urls=[http://127.0.0.1:%d]", s.vllm.Port), "policy.pool.model=policy",
		"probes.local=false", "probes.server.listen=true", fmt.Sprintf("probes.server.port=%d", port), "probes.prober.streams.ack_wait=3s", "probes.worker.streams.ack_wait=3s",
	}
	p := startProcess(t, s.mark, arguments("train", set...)...)
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	p.until("NATS", time.Minute, func() bool {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "nats://"), time.Second)
		return err == nil && c.Close() == nil
	})
	worker := func(name string) *process {
		return startProcess(t, s.mark, "worker", "shadow", "--nats", url, "--slots", "1", "--name", name, "--dir", filepath.Join(run, "worker"))
	}
	first := worker("w1")
	p.until("rollouts of update 1", 3*time.Minute, func() bool { return inTheMiddle(t, run, 1) })
	first.kill()
	first.wait(10 * time.Second)
	second := worker("w2")
	p.until("rollouts of update 2", 3*time.Minute, func() bool { return inTheMiddle(t, run, 2) })
	trainer := trainerOf(t, run)
	if err := syscall.Kill(trainer.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code := p.wait(time.Minute)
	for _, says := range []string{fmt.Sprintf("the trainer process %d ended (signal: killed)", trainer.PID), "go on with: milepost train --resume " + run} {
		if code != exitFailed || strings.Count(p.out.String(), says) != 1 {
			t.Fatalf("exit code %d, want %q once; it said:\n%s", code, says, p.out.String())
		}
	}

	p = startProcess(t, s.mark, "train", "--resume", run)
	p.until("rollouts of update 3", 3*time.Minute, func() bool { return inTheMiddle(t, run, 3) })
	p.interrupt()
	if code := p.wait(time.Minute); code != exitInterrupted || !strings.Contains(p.out.String(), "go on with: milepost train --resume "+run) {
		t.Fatalf("interrupted: exit code %d; it said:\n%s", code, p.out.String())
	}
	if trainer := trainerOf(t, run); trainer != nil {
		t.Errorf("the interrupted run left its trainer: %v", trainer)
	}

	p = startProcess(t, s.mark, "train", "--resume", run)
	if code := p.wait(3 * time.Minute); code != exitDone {
		t.Fatalf("resumed: exit code %d; it said:\n%s", code, p.out.String())
	}
	second.interrupt() // its messenger went with the run, so it may have to give up what it could not hand back
	if code := second.wait(time.Minute); code != exitDone && code != exitInterrupted {
		t.Errorf("worker: exit code %d; it said:\n%s", code, second.out.String())
	}
	checkRun(t, run, 3)
	nothingLeft(t, s.mark+"-none", run)
	if !s.vllm.Identity.Alive() {
		t.Error("a run stopped a server that was not its own")
	}
}

// resume goes on with the quickstart's run: the server is the one that the killed orchestrator had started.
func (s *scenario) resume(t *testing.T) {
	p := startProcess(t, s.mark, "train", "--resume", s.run)
	p.until("adoption", time.Minute, func() bool { return strings.Contains(p.out.String(), "adopted") })
	if now := s.server(t); now.Identity != s.vllm.Identity {
		t.Errorf("vLLM is %v, not %v", now.Identity, s.vllm.Identity)
	}
	if code := p.wait(5 * time.Minute); code != exitDone {
		t.Fatalf("exit code %d; it said:\n%s", code, p.out.String())
	}
	checkRun(t, s.run, 2)
	folder := &orchestrator.Folder{Dir: s.run}
	for _, name := range []string{orchestrator.EvalBefore, "validation-0", "validation-2", orchestrator.EvalAfter} {
		if e, err := folder.Evaluation(name); err != nil || e.Graded == 0 || e.Infra > 0 {
			t.Errorf("evaluation %s: %+v, %v", name, e, err)
		}
	}
	nothingLeft(t, s.mark, filepath.Dir(s.dir))
}

// again: with nothing changed a quickstart has nothing to do; with other updates it reuses every stage.
func (s *scenario) again(t *testing.T) {
	began := time.Now()
	code, out, errs := milepostRun(t, arguments("quickstart", "run.dir="+s.dir)...)
	if took := time.Since(began); code != exitDone || !strings.Contains(out, "nothing changed") || took > 20*time.Second {
		t.Errorf("exit code %d after %v: %s%s", code, took, out, errs)
	}
	p := startProcess(t, s.mark, arguments("quickstart", "run.dir="+s.dir, "schedule.group_size=2")...)
	p.until("training", 2*time.Minute, func() bool { return strings.Contains(p.out.String(), "training: 4 groups of 2") })
	for _, says := range []string{"tasks: reused", "demonstrations: reused", "cold start: reused"} {
		if !strings.Contains(p.out.String(), says) {
			t.Errorf("it does not say %q:\n%s", says, p.out.String())
		}
	}
	p.interrupt() // while vLLM starts
	if code := p.wait(time.Minute); code != exitInterrupted || !strings.Contains(p.out.String(), "give the same command again") {
		t.Errorf("interrupted: exit code %d; it said:\n%s", code, p.out.String())
	}
	nothingLeft(t, s.mark, filepath.Dir(s.dir))
}

func (s *scenario) artifact(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// trainerOf returns the trainer of a run, nil where none is noted.
func trainerOf(t *testing.T, run string) *supervise.Identity {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(run, "logs", "trainer.json"))
	if os.IsNotExist(err) {
		return nil
	}
	var id supervise.Identity
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &id
}

// events reads a run's journal, which may be growing.
func events(t *testing.T, run string) []orchestrator.Event {
	t.Helper()
	records, err := journal.Read(filepath.Join(run, "journal.jsonl"))
	if milepost.KindOf(err) == milepost.KindNotFound {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	out := make([]orchestrator.Event, len(records))
	for i, r := range records {
		if err := json.Unmarshal(r.Data, &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// inTheMiddle reports whether some of an update's episodes have ended, and at most two thirds.
func inTheMiddle(t *testing.T, run string, update int) bool {
	n := 0
	for _, e := range events(t, run) {
		if e.Type == orchestrator.EventEpisodeEnded && strings.HasPrefix(e.Episode, fmt.Sprintf("u%04d/", update)) {
			n++
		}
	}
	if n > e2eGroups*e2eGroup*2/3 {
		t.Fatalf("%d episodes of update %d have ended already: the test came too late", n, update)
	}
	return n >= 2
}

// checkRun holds a finished run to what kills must not break: each episode ended once, each batch was trained once, and
// sampler and trainer agreed at every update.
func checkRun(t *testing.T, run string, epochs uint64) {
	t.Helper()
	ended, trained := map[string]int{}, map[int]int{}
	for _, e := range events(t, run) {
		switch e.Type {
		case orchestrator.EventEpisodeEnded:
			ended[e.Episode]++
			if e.Status == milepost.EpisodeInfra || e.Status == milepost.EpisodeCancelled {
				t.Errorf("episode %s: %s", e.Episode, e.Status)
			}
		case orchestrator.EventTrained:
			trained[e.Update]++
		}
	}
	training := 0
	for id, n := range ended {
		if n != 1 {
			t.Errorf("episode %s ended %d times", id, n)
		}
		if strings.HasPrefix(id, "u") {
			training++
		}
	}
	if training != e2eUpdates*e2eGroups*e2eGroup {
		t.Errorf("%d training episodes ended, want %d", training, e2eUpdates*e2eGroups*e2eGroup)
	}
	folder := &orchestrator.Folder{Dir: run}
	h, err := folder.History()
	if err != nil || h.Epochs != epochs || h.Updates != e2eUpdates || h.Stop == "" {
		t.Errorf("history %+v, %v; want %d epochs, %d updates and why it stopped", h, err, epochs, e2eUpdates)
	}
	metrics, err := folder.Metrics()
	if err != nil || len(metrics) != e2eUpdates+1 {
		t.Fatalf("metrics of %d updates, %v", len(metrics)-1, err)
	}
	for u := 1; u <= e2eUpdates; u++ {
		if trained[u] != 1 {
			t.Errorf("update %d was trained %d times", u, trained[u])
		}
		gap, ok := metrics[u]["logprob_gap_mean"]
		if !ok || !(gap < 1e-5) {
			t.Errorf("update %d: mean logprob gap %g (measured: %v)", u, gap, ok)
		}
		if metrics[u]["episodes_infra"] != 0 || metrics[u]["probes_late"] != 0 {
			t.Errorf("update %d: %g episodes lost, %g of the probes late", u, metrics[u]["episodes_infra"], metrics[u]["probes_late"])
		}
		t.Logf("update %d: gap %.1e, resolved %.2f, %g probes, trusted %.2f, invalid calls %.2f", u, gap, metrics[u]["resolved_rate"],
			metrics[u]["probes"], metrics[u]["probes_trusted"], metrics[u]["invalid_calls"])
	}
	if page, err := os.Stat(folder.Path("report.html")); err != nil || page.Size() < 10000 {
		t.Errorf("report.html: %v, %v", page, err)
	}
}
