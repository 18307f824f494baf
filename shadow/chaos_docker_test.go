package shadow

import (
	"bytes"
	"context"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
)

// onDocker lets both workers run their tests in containers of an engine of the scenario's own, which has further arguments.
func onDocker(args ...string) func(*chaosWorld) {
	return func(w *chaosWorld) {
		w.engine = dockertest.StartEngine(w.t, args...)
		w.clean = w.engineLeft()
		cfg := w.engine.Config(dockertest.BuildAgent(w.t))
		cfg.Lease, cfg.Retry = 5*time.Second, 500*time.Millisecond
		for _, r := range w.roles {
			r.Docker = &cfg
		}
		w.roles[0].Delay = 300 * time.Millisecond
	}
}

// killEngine ends engine and containerd while a probe holds a container, and starts them again on what they left.
func killEngine(ctx context.Context, w *chaosWorld) {
	w.goOn()
	p := w.workers[0]
	before := p.begun.Load()
	w.await(ctx, "worker 0 is in a probe", func() bool { return p.begun.Load() > before && p.holds.Load() > 0 })
	if err := w.engine.Kill(); err != nil {
		w.t.Error(err)
	}
	w.await(ctx, "a probe failed for want of the engine", func() bool { return w.prober.Stats().Retries > 0 })
	away := 3 * time.Second
	if w.full {
		away = 20 * time.Second
	}
	select {
	case <-time.After(away):
	case <-ctx.Done():
	}
	if err := w.engine.Restart(); err != nil {
		w.t.Error(err)
	}
}

// engineLeft is what an engine has of this driver, and what the machine has of the engine: processes in containers and
// mounts. The shims that held containers are the engine's own; some outlive a containerd that was killed, holding nothing or
// a container that was being started then (runc init, which waits for ever for the word to begin, and the restarted engine
// knows nothing of it).
type engineLeft struct{ containers, volumes, processes, mounts int }

func (w *chaosWorld) engineLeft() (l engineLeft) {
	w.t.Helper()
	cli := dockertest.Client(w.t, w.engine.Host)
	mine := filters.NewArgs(filters.Arg("label", "milepost.owner"))
	containers, err := cli.ContainerList(context.Background(), container.ListOptions{All: true, Filters: mine})
	must(w.t, err)
	volumes, err := cli.VolumeList(context.Background(), volume.ListOptions{Filters: mine})
	must(w.t, err)
	l.containers, l.volumes = len(containers), len(volumes.Volumes)
	entries, err := os.ReadDir("/proc")
	must(w.t, err)
	shims, parents := map[string]bool{}, map[string]int{}
	for _, e := range entries {
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline") // a process may end meanwhile
		if strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), w.engine.Dir+"/") {
			shims[e.Name()] = true
		}
		if string(line) == "runc\x00init\x00" {
			continue
		}
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 1 {
			parents[f[1]]++
		}
	}
	for shim := range shims {
		l.processes += parents[shim]
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(w.t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, w.engine.Dir+"/") {
			l.mounts++
		}
	}
	return l
}

// nothingLeft kills one worker, ends the other, and wants nothing of them once the next driver has collected.
func nothingLeft(w *chaosWorld) {
	w.t.Helper()
	w.workers[0].end(syscall.SIGKILL)
	w.workers[1].end(syscall.SIGTERM)
	d, err := docker.New(w.t.Context(), *w.roles[0].Docker) // collects what dead owners left
	must(w.t, err)
	must(w.t, d.Close())
	var l engineLeft
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if l = w.engineLeft(); l == w.clean {
			return
		}
	}
	w.t.Errorf("left behind %+v, the engine without sandboxes has %+v", l, w.clean)
}
