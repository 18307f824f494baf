package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
)

// The storm of whole runs: real vLLM, trainer, NATS, sandboxes and tests, and kill -9 of one after the other at moments
// that nobody chose. What must hold of every run stands in runchaos_check_test.go.

const (
	runChaosEnv  = "MILEPOST_CHAOS"      // switches the storm on
	chaosRunsEnv = "MILEPOST_CHAOS_RUNS" // how many runs; 30 where unset
	chaosSeedEnv = "MILEPOST_CHAOS_SEED" // of the moments and victims; 1 where unset

	chaosUpdates = 4
	chaosOwned   = 5 // each so many-th run starts a vLLM of its own; the others share one that joins over NATS and outlives them
	chaosStarts  = 6 // a run that has not ended after so many starts never will
)

// victim is what a kill hits.
type victim string

const (
	victimTrainer      victim = "trainer"
	victimOrchestrator victim = "orchestrator"
	victimVLLM         victim = "vLLM"
	victimNATS         victim = "NATS"
)

var victims = []victim{victimTrainer, victimOrchestrator, victimVLLM, victimNATS}

// TestRunChaos kills parts of real training runs, each part in every fourth run and a random second one in some. A run
// that failed or was killed is resumed, as a person or a scheduler would do it, until it is done.
func TestRunChaos(t *testing.T) {
	if os.Getenv(runChaosEnv) != "1" {
		t.Skip("takes half an hour: set " + runChaosEnv + "=1 (make chaos)")
	}
	needSandbox(t)
	seed := uint64(number(t, chaosSeedEnv, 1))
	s := newStorm(t)
	s.run(t, 0, nil) // undisturbed: how long a run takes
	for i := range number(t, chaosRunsEnv, 30) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		kills := []kill{s.draw(rng, victims[i%len(victims)])}
		if rng.Float64() < .4 {
			kills = append(kills, s.draw(rng, victims[rng.IntN(len(victims))]))
		}
		slices.SortFunc(kills, func(a, b kill) int { return cmp.Compare(a.moment(s), b.moment(s)) })
		t.Run(fmt.Sprintf("run %02d", i+1), func(t *testing.T) { s.run(t, i+1, kills) })
	}
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; it must be a whole number, at least 1", name, text)
	}
	return n
}

// kill is one blow.
type kill struct {
	victim victim
	begun  bool          // it falls after the journal's first record; else while everything starts
	after  time.Duration // since the journal's first record, or since the start
}

// moment is when a kill falls in an undisturbed run.
func (k kill) moment(s *storm) time.Duration {
	if k.begun {
		return s.start + k.after
	}
	return k.after
}

// storm is what the runs share: a policy and tasks, a NATS server, and a vLLM that joins over it.
type storm struct {
	mark   string
	top    string
	model  string
	tasks  string
	nats   *natsProcess
	start  time.Duration // what starting takes where nothing is killed
	active time.Duration // and from the journal's first record to the end
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	s := &storm{top: t.TempDir()}
	s.mark = "chaos-" + filepath.Base(filepath.Dir(s.top))
	t.Cleanup(func() { (&scenario{t: t, mark: s.mark, dir: filepath.Join(s.top, "q")}).end() })
	s.tasks, s.model = smallPolicy(t, s.top)
	s.nats = startNATS(t, s.mark, filepath.Join(s.top, "nats"))
	s.serve(t)
	return s
}

// serve keeps a vLLM up that joins whatever run wants it, as a machine's process manager does: its worker gives up a server
// that was killed four times within minutes.
func (s *storm) serve(t *testing.T) {
	t.Helper()
	args := append([]string{"worker", "serve", "--nats", s.nats.url(), "--dir", filepath.Join(s.top, "server")}, arguments("", "model="+s.model)[1:]...)
	over, ended := make(chan struct{}), make(chan struct{})
	stop := sync.OnceFunc(func() { close(over); <-ended })
	start := func() *process {
		p := startProcess(t, s.mark, args...)
		t.Cleanup(stop) // before the process is killed
		return p
	}
	first := start()
	go func() {
		defer close(ended)
		for worker := first; ; {
			select {
			case <-worker.done:
				worker = start()
			case <-over:
				worker.terminate()
				<-worker.done
				return
			}
		}
	}()
	first.until("vLLM", 10*time.Minute, func() bool { return strings.Contains(first.out.String(), "vLLM serves") })
}

// draw picks a moment: one in four while everything starts, the others anywhere in the run.
func (s *storm) draw(rng *rand.Rand, v victim) kill {
	k := kill{victim: v, begun: rng.IntN(4) > 0}
	within := s.start
	if k.begun {
		within = s.active * 4 / 5 // the first run is the slowest: nothing is cached yet
	}
	k.after = time.Duration(rng.Int64N(int64(within)))
	return k
}

// run trains once, through all kills, and holds the result to the rules. The first run, without kills, says how long one
// usually takes.
func (s *storm) run(t *testing.T, index int, kills []kill) {
	dir := filepath.Join(s.top, fmt.Sprintf("run%02d", index))
	began := time.Now()
	var blows []string
	for starts := 1; ; starts++ {
		p := startProcess(t, s.mark, s.command(t, dir, index)...)
		for len(blows) < len(kills) {
			k := kills[len(blows)]
			if !s.strike(t, dir, p, k, began) {
				break
			}
			blows = append(blows, fmt.Sprintf("%s after %v (%s)", k.victim, time.Since(began).Round(time.Second), lastEvent(t, dir)))
		}
		code := p.wait(10 * time.Minute)
		if code == exitDone {
			break
		}
		if code != exitFailed && code != -1 || starts == chaosStarts {
			t.Fatalf("start %d ended with exit code %d; killed: %v; it said:\n%s", starts, code, blows, p.out.String())
		}
	}
	took := time.Since(began)
	if kills == nil {
		s.active = took - firstRecord(t, dir).Sub(began)
		s.start = took - s.active
	}
	how := "undisturbed: "
	if len(blows) > 0 {
		how = "killed: " + strings.Join(blows, ", ") + ": "
	}
	t.Logf("%v, %s%s", took.Round(time.Second), how, checkLineage(t, dir))
}

// owned reports whether a run starts a vLLM of its own.
func owned(index int) bool { return index%chaosOwned == chaosOwned-1 }

// command starts the run, or resumes it where it has begun.
func (s *storm) command(t *testing.T, dir string, index int) []string {
	t.Helper()
	epochs, err := orchestrator.Epochs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if epochs > 0 {
		return []string{"train", "--resume", dir}
	}
	replicas := 0
	if owned(index) {
		replicas = 1
	}
	return arguments("train", "run.dir="+dir, fmt.Sprintf("server.replicas=%d", replicas), "model="+s.model, "tasks.train="+s.tasks,
		fmt.Sprintf("run.seed=%d", index), fmt.Sprintf("schedule.max_updates=%d", chaosUpdates), "schedule.eval_every=0",
		"probes.connect.url="+s.nats.url(), "probes.prober.streams.ack_wait=3s", "probes.worker.streams.ack_wait=3s")
}

// strike waits for the moment of a kill and for its victim, and kills. False where the process ended before that.
func (s *storm) strike(t *testing.T, dir string, p *process, k kill, began time.Time) bool {
	t.Helper()
	for {
		select {
		case <-p.done:
			return false
		case <-time.After(20 * time.Millisecond):
		}
		since := began
		if k.begun {
			since = firstRecord(t, dir)
		}
		if !since.IsZero() && time.Since(since) >= k.after && s.hit(t, dir, p, k.victim) {
			return true
		}
	}
}

// firstRecord is when a run's journal began; zero where it has not.
func firstRecord(t *testing.T, dir string) time.Time {
	t.Helper()
	h, err := (&orchestrator.Folder{Dir: dir}).History()
	if err != nil && milepost.KindOf(err) != milepost.KindNotFound {
		t.Fatal(err)
	}
	return h.Started
}

// hit kills a victim that is up.
func (s *storm) hit(t *testing.T, dir string, p *process, v victim) bool {
	t.Helper()
	var id *supervise.Identity
	switch v {
	case victimOrchestrator:
		p.kill()
		return true
	case victimNATS:
		s.nats.bounce()
		return true
	case victimTrainer:
		id = trainerOf(t, dir)
	case victimVLLM:
		for _, file := range []string{filepath.Join(dir, "logs", "vllm-0.json"), filepath.Join(s.top, "server", "vllm.json")} {
			if server := readIdentity(file); server != nil {
				id = &server.Identity
				break
			}
		}
	}
	if id == nil || !id.Alive() {
		return false
	}
	if err := syscall.Kill(-id.PID, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %s: %v", v, err)
	}
	return true
}

// lastEvent says how far a run has come.
func lastEvent(t *testing.T, dir string) string {
	t.Helper()
	all := events(t, dir)
	if len(all) == 0 {
		return "not begun"
	}
	last := all[len(all)-1]
	return strings.TrimSpace(fmt.Sprintf("%s %s", last.Type, last.Episode))
}
