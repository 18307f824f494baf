package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env"
	inmemory "github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// loopFigures is what one process of the bench measured of itself; both loops print it as JSON.
type loopFigures struct {
	Episodes int     `json:"episodes"`
	Turns    int     `json:"turns"`   // of all episodes
	Seconds  float64 `json:"seconds"` // first start to last end
	CPU      float64 `json:"cpu_s"`   // of the process and its children, in that time
	Before   int64   `json:"rss_before"`
	Held     int64   `json:"rss_held"`      // while all episodes waited for a turn; 0 where it was not asked for
	Settled  int64   `json:"rss_collected"` // the same after the garbage was collected
}

// loopRun is one measurement.
type loopRun struct {
	Endpoint string
	Episodes int
	Memory   bool // all episodes are held at one turn, and memory is read then
	Dir      string
	Profile  string // file for a CPU profile; "" = none
}

// newBenchAgentsCommand runs Milepost's loop for the bench, in a process of its own so that its time and memory are its own.
func newBenchAgentsCommand() *cobra.Command {
	var r loopRun
	c := &cobra.Command{
		Use: "agents", Hidden: true, Args: cobra.NoArgs,
		Short: "Run episodes against the bench's stub and print what they cost, as JSON",
		RunE: func(c *cobra.Command, _ []string) error {
			got, err := r.run(c.Context())
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(got)
		},
	}
	c.Flags().StringVar(&r.Endpoint, "endpoint", "", "address of the stub")
	c.Flags().IntVar(&r.Episodes, "episodes", 2000, "episodes at once")
	c.Flags().BoolVar(&r.Memory, "memory", false, "read memory while the stub holds all of them")
	c.Flags().StringVar(&r.Dir, "dir", "", "where the task's repository lies")
	c.Flags().StringVar(&r.Profile, "profile", "", "file for a CPU profile")
	return c
}

// loopRepo are the files of the bench's task.
func loopRepo() []benchmarks.File {
	var b strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, "def f%02d(value):\n    return value + %d\n", i, i)
	}
	return []benchmarks.File{{Path: "pkg/core.py", Data: []byte(b.String())}, {Path: "pkg/__init__.py"}, {Path: "README.md", Data: []byte("A package.\n")}}
}

// run opens the parts of an orchestrator that an episode goes through, and runs the episodes all at once.
func (r loopRun) run(ctx context.Context) (got loopFigures, err error) {
	const op = "bench: agents"
	runner, task, err := r.open(ctx)
	if err != nil {
		return got, err
	}
	got.Episodes, got.Before = r.Episodes, collectedRSS()
	stop := func() {}
	if r.Profile != "" {
		if stop, err = profile(r.Profile); err != nil {
			return got, err
		}
	}
	began, before := time.Now(), cpuSeconds()
	eps := make([]*milepost.Episode, r.Episodes)
	var wg sync.WaitGroup
	for i := range eps {
		wg.Go(func() {
			id := "e" + strconv.Itoa(i)
			ep, err := runner.Run(ctx, rollout.Request{Episode: id, Group: "g", Task: task, Seed: int64(i)})
			if err != nil {
				ep = &milepost.Episode{ID: id, Status: milepost.EpisodeInfra, Error: err.Error()}
			}
			eps[i] = ep
		})
	}
	if r.Memory {
		if err := waitHeld(ctx, r.Endpoint, r.Episodes); err != nil {
			return got, err
		}
		got.Held, got.Settled = residentBytes(), collectedRSS()
	}
	wg.Wait()
	got.Seconds, got.CPU = time.Since(began).Seconds(), cpuSeconds()-before
	stop()
	for _, ep := range eps {
		if ep.Stop != milepost.StopSubmit {
			return got, milepost.E(op, milepost.KindInternal, "episode %s ended as %s (%s) %s", ep.ID, ep.Status, ep.Stop, ep.Error)
		}
		got.Turns += len(ep.Steps)
	}
	return got, nil
}

// open makes the runner of a training run, with sandboxes in memory and no prober.
func (r loopRun) open(ctx context.Context) (*rollout.Runner, *milepost.Task, error) {
	files := loopRepo()
	commit, tree, err := benchmarks.WriteRepo(filepath.Join(r.Dir, "repo"), files)
	if err != nil {
		return nil, nil, err
	}
	task := &milepost.Task{ID: "t", Kind: milepost.BugRepair, Repo: filepath.Join(r.Dir, "repo"), BaseCommit: commit, BaseTree: tree, Statement: strings.Repeat("The function returns a wrong value. ", 30)}
	bases, err := repo.NewStore(filepath.Join(r.Dir, "bases"))
	if err != nil {
		return nil, nil, err
	}
	blobs, err := repo.NewBlobs(filepath.Join(r.Dir, "blobs"))
	if err != nil {
		return nil, nil, err
	}
	cfg := policy.DefaultPoolConfig()
	cfg.URLs, cfg.MaxConcurrent = []string{r.Endpoint}, r.Episodes
	pool, err := policy.NewPool(cfg, policy.PoolDeps{})
	if err != nil {
		return nil, nil, err
	}
	pool.Trust(r.Endpoint)
	token := policy.DefaultTokenConfig()
	token.Tools = policy.ToolsNone
	model, err := policy.NewTokenModel(pool, token)
	if err != nil {
		return nil, nil, err
	}
	if err := model.Ready(ctx); err != nil {
		return nil, nil, err
	}
	runner, err := rollout.New(loopConfig(), rollout.Deps{Env: env.New(inmemory.New()), Bases: bases, Blobs: blobs, Model: model})
	return runner, task, err
}

// loopConfig is the default loop without a limit that the script would meet on a slow machine.
func loopConfig() rollout.Config {
	cfg := rollout.Default()
	cfg.Wall = 4 * time.Hour
	return cfg
}

// profile writes a CPU profile until the function it returns is called.
func profile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, milepost.Wrap("bench: profile", milepost.KindUnavailable, err)
}

// waitHeld waits until the stub holds so many episodes.
func waitHeld(ctx context.Context, endpoint string, episodes int) error {
	const op = "bench: wait"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/held", nil)
		if err != nil {
			return milepost.Wrap(op, milepost.KindInternal, err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		b, err := io.ReadAll(resp.Body)
		n, bad := strconv.Atoi(string(b))
		if err := errors.Join(err, bad, resp.Body.Close()); err != nil {
			return milepost.Wrap(op, milepost.KindCorrupt, err)
		}
		if n >= episodes {
			return nil
		}
		select {
		case <-ctx.Done():
			return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// residentBytes is the memory that the process holds; 0 where the system does not tell.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	var size, resident int64
	if err == nil {
		_, err = fmt.Sscan(string(b), &size, &resident)
	}
	if err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// collectedRSS is the same once garbage was given back.
func collectedRSS() int64 {
	runtime.GC()
	debug.FreeOSMemory()
	return residentBytes()
}

// cpuSeconds is the processor time of this process and of those that it has waited for.
func cpuSeconds() float64 {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			panic(err) // it has no way to fail for these
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum.Seconds()
}
