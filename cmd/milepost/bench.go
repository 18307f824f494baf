package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
)

// benchOptions say what `milepost bench` measures; docs/bench.md explains how to read the result.
type benchOptions struct {
	Tests       []string      `json:"tests"`        // kinds of tests, see benchTests
	Turn        time.Duration `json:"turn_ns"`      // mean time that the policy takes for a turn
	Wait        float64       `json:"wait_turns"`   // turns that the tests of kind waiting sleep
	Tasks       int           `json:"tasks"`        // different tasks
	Attempts    int           `json:"attempts"`     // episodes of each
	Concurrency int           `json:"concurrency"`  // episodes under way at once
	Workers     []int         `json:"workers"`      // numbers of shadow workers; the largest is also synchronous probing's
	Slots       int           `json:"slots"`        // probes at once of each worker
	Rounds      int           `json:"rounds"`       // repeats of what is compared
	SweepRounds int           `json:"sweep_rounds"` // of them, with the smaller numbers of workers too
	Seed        int64         `json:"seed"`         // of tasks and episodes
	Loop        []int         `json:"loop"`         // the agent loop alone: episodes at once; 0 = not measured
	LoopPeer    []int         `json:"loop_peer"`    // the same of mini-swe-agent with litellm, whose client has 100 requests under way at most
	LoopTurns   int           `json:"loop_turns"`   // turns of each
	LoopLatency time.Duration `json:"loop_latency"` // of the stub endpoint
	GoResults   string        `json:"-"`            // file with the output of go test -bench
	JSON        bool          `json:"-"`            // print JSON
	Dir         string        `json:"-"`            // where it works; removed at the end
}

func defaultBench() benchOptions {
	return benchOptions{Tests: []string{testsWaiting, testsReal}, Turn: 200 * time.Millisecond, Wait: 2, Tasks: 16, Attempts: 4, Concurrency: 16,
		Workers: []int{1, 2, 4, 8}, Slots: 2, Rounds: 3, SweepRounds: 1, Seed: 1,
		Loop: []int{2000, 4000}, LoopPeer: []int{100}, LoopTurns: 10, LoopLatency: 500 * time.Millisecond}
}

func (o benchOptions) validate() error {
	bad := func(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }
	for _, t := range o.Tests {
		if t != testsWaiting && t != testsReal {
			return bad("--tests: %q is not one of %s, %s", t, testsWaiting, testsReal)
		}
	}
	for i, w := range o.Workers {
		if w < 1 || w > 64 || i > 0 && w <= o.Workers[i-1] {
			return bad("--workers: %v must grow, within 1 to 64", o.Workers)
		}
	}
	for _, n := range append(slices.Clone(o.Loop), o.LoopPeer...) {
		if n < 0 {
			return bad("--loop and --loop-peer: %d is negative; allowed: 1 or more, or 0 alone for none", n)
		}
	}
	switch {
	case o.LoopTurns < 4 || o.LoopLatency <= 0:
		return bad("--loop-turns must be 4 or more, --loop-latency positive (are %d, %s)", o.LoopTurns, o.LoopLatency)
	case len(o.Tests) == 0 && !slices.ContainsFunc(o.Loop, isMeasured) || len(o.Workers) == 0:
		return bad("--workers, and --tests or --loop, must not be empty")
	case o.Turn <= 0:
		return bad("--turn is %s; it must be positive", o.Turn)
	case !(o.Wait > 0 && o.Wait <= 100):
		return bad("--wait is %g; it must be above 0, at most 100 turns", o.Wait)
	case o.Tasks < 1 || o.Attempts < 1 || o.Concurrency < 1 || o.Slots < 1:
		return bad("--tasks, --attempts, --concurrency and --slots must be 1 or more (are %d, %d, %d, %d)", o.Tasks, o.Attempts, o.Concurrency, o.Slots)
	case o.Rounds < 1 || o.SweepRounds < 0 || o.SweepRounds > o.Rounds:
		return bad("--rounds must be 1 or more and --sweep-rounds within 0 to it (are %d, %d)", o.Rounds, o.SweepRounds)
	}
	return nil
}

// newBenchCommand is hidden: it serves `make bench`.
func newBenchCommand() *cobra.Command {
	o := defaultBench()
	c := &cobra.Command{
		Use:    "bench",
		Hidden: true,
		Short:  "Measure how much of verification runs hidden behind the agents' own work",
		Long: "Runs the same episodes of the scripted expert on micro tasks, through the real loop, sandbox, NATS and tests, without\n" +
			"step probes, with synchronous probing and with shadow workers, in turns, and compares the times. See docs/bench.md.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return runBench(c.Context(), o, c.OutOrStdout(), newProgress(c.ErrOrStderr()))
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Tests, "tests", o.Tests, "waiting (a test that sleeps is added to each task), real (the tasks' own tests alone)")
	f.DurationVar(&o.Turn, "turn", o.Turn, "mean time the stub policy takes for a turn")
	f.Float64Var(&o.Wait, "wait", o.Wait, "how many turns the tests of kind waiting sleep")
	f.IntVar(&o.Tasks, "tasks", o.Tasks, "different tasks")
	f.IntVar(&o.Attempts, "attempts", o.Attempts, "episodes of each task")
	f.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "episodes under way at once")
	f.IntSliceVar(&o.Workers, "workers", o.Workers, "numbers of shadow workers, growing; the largest serves synchronous probing too")
	f.IntVar(&o.Slots, "slots", o.Slots, "probes at once of each worker")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "repeats of each comparison, interleaved")
	f.IntVar(&o.SweepRounds, "sweep-rounds", o.SweepRounds, "how many of them measure the smaller numbers of workers too")
	f.Int64Var(&o.Seed, "seed", o.Seed, "of tasks and episodes")
	f.IntSliceVar(&o.Loop, "loop", o.Loop, "the agent loop alone against a stub endpoint: episodes at once; 0 = not measured")
	f.IntSliceVar(&o.LoopPeer, "loop-peer", o.LoopPeer, "the same for mini-swe-agent with litellm; 0 = not measured")
	f.IntVar(&o.LoopTurns, "loop-turns", o.LoopTurns, "turns of each of these episodes")
	f.DurationVar(&o.LoopLatency, "loop-latency", o.LoopLatency, "how long the stub endpoint takes for a turn")
	f.StringVar(&o.GoResults, "go-results", "", "file with the output of go test -bench, to be summed up beside")
	c.AddCommand(newBenchStubCommand(), newBenchAgentsCommand())
	f.BoolVar(&o.JSON, "json", false, "print JSON, with every single batch")
	return c
}

// benchReport is what the command prints; with --json as it stands.
type benchReport struct {
	Machine benchMachine   `json:"machine"`
	Options benchOptions   `json:"options"`
	Hidden  []benchSection `json:"hidden"`
	Loops   []loopRow      `json:"loops,omitempty"`
	Micro   []goBenchmark  `json:"micro,omitempty"`
}

// benchMachine is what the figures depend on besides the program.
type benchMachine struct {
	Cores      int     `json:"cores"`
	Go         string  `json:"go"`
	LoadBefore float64 `json:"load_before"` // load average of the last minute; far above 0 before the start = not a quiet machine
	LoadAfter  float64 `json:"load_after"`
	Seconds    float64 `json:"seconds"` // that the measurement took
}

func runBench(ctx context.Context, o benchOptions, out io.Writer, p *progress) (err error) {
	const op = "bench"
	r := benchReport{Options: o, Machine: benchMachine{Cores: runtime.NumCPU(), Go: runtime.Version()}}
	if r.Micro, err = readGoBenchmarks(o.GoResults); err != nil {
		return err
	}
	if r.Machine.LoadBefore, err = loadAverage(); err != nil {
		return err
	}
	if o.Dir, err = os.MkdirTemp("", "milepost-bench-"); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	began := time.Now()
	if r.Loops, err = benchLoops(ctx, o, p); err != nil {
		return err
	}
	if r.Hidden, err = benchHidden(ctx, o, p); err != nil {
		return err
	}
	r.Machine.Seconds = time.Since(began).Seconds()
	if r.Machine.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	if o.JSON {
		return printJSON(out, r)
	}
	return printBench(out, r)
}

// benchHidden measures what verification costs by each kind of tests.
func benchHidden(ctx context.Context, o benchOptions, p *progress) (out []benchSection, err error) {
	if len(o.Tests) == 0 {
		return nil, nil
	}
	b, err := openBench(ctx, o, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.world.close()) }()
	for _, kind := range o.Tests {
		rounds, err := b.measure(ctx, kind)
		if err != nil {
			return nil, err
		}
		out = append(out, summariseBench(kind, variantsOf(o.Workers), rounds))
	}
	return out, nil
}

// loadAverage is the machine's load average over the last minute.
func loadAverage() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, milepost.Wrap("bench: load average", milepost.KindUnavailable, err)
	}
	var load float64
	if _, err := fmt.Fscan(strings.NewReader(string(text)), &load); err != nil {
		return 0, milepost.Wrap("bench: load average", milepost.KindCorrupt, err)
	}
	return load, nil
}
