package docker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/envtest"
)

// left counts what this driver's label, or its agent, still finds on the machine.
type left struct{ containers, volumes, processes, mounts int }

func countLeft(t testing.TB, cli *client.Client) left {
	t.Helper()
	mine := filters.NewArgs(filters.Arg("label", "milepost.owner"))
	containers, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: mine})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := cli.VolumeList(ctx, volume.ListOptions{Filters: mine})
	if err != nil {
		t.Fatal(err)
	}
	l := left{containers: len(containers), volumes: len(volumes.Volumes)}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && strings.HasPrefix(string(line), agent.Path+"\x00") {
			l.processes++
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	info, err := cli.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, filepath.Join(info.DockerRootDir, "overlay2")+"/") || strings.Contains(line, info.DockerRootDir+"/containers/") {
			l.mounts++
		}
	}
	return l
}

// wantNothing waits a moment for what ends by itself, then wants that nothing is left.
func wantNothing(t testing.TB, cli *client.Client) {
	t.Helper()
	var l left
	for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(200 * time.Millisecond) {
		if l = countLeft(t, cli); l == (left{}) {
			return
		}
	}
	t.Errorf("left behind: %+v", l)
}

// episode works in a sandbox of its own until it is done or cancelled.
func episode(ctx context.Context, e *env.Env, base string, rnd *rand.Rand) (err error) {
	s, err := e.Create(ctx, env.Spec{Name: "episode", Base: base})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	for i := range 3 {
		if err := s.WriteFile(ctx, fmt.Sprintf("f%d", i), []byte("x"), 0); err != nil {
			return err
		}
		script := []string{"sleep 0.05", "setsid sleep 1000 & sleep 0.05", "sleep 5", "head -c 100000 /dev/zero"}[rnd.IntN(4)]
		if _, err := s.Exec(ctx, env.Command{Argv: []string{"/bin/sh", "-c", script}, Limits: env.Limits{Wall: time.Second}}); err != nil {
			return err
		}
	}
	if _, err := s.Changes(ctx); err != nil {
		return err
	}
	if rnd.IntN(4) == 0 {
		_, err = s.Start(ctx, env.Command{Argv: []string{"sleep", "1000"}}) // Close ends it
	}
	return err
}

// episodes runs n of them, four at a time, half of them cancelled at a random moment.
func episodes(t testing.TB, e *env.Env, base string, n int, seed uint64) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			c, cancel := context.WithCancel(ctx)
			defer cancel()
			if rnd.IntN(2) == 0 {
				timer := time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Millisecond, cancel)
				defer timer.Stop()
			}
			if err := episode(c, e, base, rnd); err != nil && milepost.KindOf(err) != milepost.KindCanceled {
				t.Errorf("episode %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

const ownerEnv = "MILEPOST_TEST_DOCKER_OWNER"

// TestOwner is the other process of TestNothingLeft: it runs episodes until it is killed.
func TestOwner(t *testing.T) {
	host, agentPath, ok := strings.Cut(os.Getenv(ownerEnv), " ")
	if !ok {
		t.Skip("only as a child of TestNothingLeft")
	}
	cfg := docker.Default()
	cfg.Hosts, cfg.Agent, cfg.Image, cfg.Pull = []string{host}, agentPath, dockertest.Image, docker.PullNever
	d, err := docker.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	base := envtest.MakeBase(t)
	for seed := uint64(0); ; seed++ {
		episodes(t, env.New(d), base, 100, seed)
	}
}

// killOwners runs processes that own sandboxes and kills each at a random moment.
func killOwners(t *testing.T, cfg docker.Config, n int) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range n {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestOwner$", "-test.timeout", "5m")
		cmd.Env = append(os.Environ(), ownerEnv+"="+cfg.Hosts[0]+" "+cfg.Agent)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Errorf("the owner said %q %v", line, err)
		}
		time.Sleep(time.Duration(500+rnd.IntN(3000)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// TestNothingLeft runs 100 episodes (MILEPOST_EPISODES sets another number) with random cancellation while owners beside
// it are killed, then counts what is there.
func TestNothingLeft(t *testing.T) {
	n := 100
	if s := os.Getenv("MILEPOST_EPISODES"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		n = 20
	}
	cfg := dockertest.Config(t)
	before := runtime.NumGoroutine()
	cli := dockertest.Client(t, cfg.Hosts[0])
	base := envtest.MakeBase(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	d := open(t, nil)
	e := env.New(d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		killOwners(t, cfg, max(2, n/25))
	}()
	episodes(t, e, base, n, 7)
	<-done
	if open := e.Open(); open != 0 {
		t.Errorf("%d sandboxes are open", open)
	}
	if err := e.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	last, err := docker.New(ctx, cfg) // collects what the dead owners left
	if err != nil {
		t.Fatal(err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	wantNothing(t, cli)
	if err := cli.Close(); err != nil {
		t.Error(err)
	}
	wantGoroutines(t, before)
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		for _, e := range left {
			if !strings.HasPrefix(e.Name(), "TestOwner") { // the base of a killed owner's test
				t.Errorf("left in the temporary folder: %s", e.Name())
			}
		}
	}
}

// TestCancelled cancels many commands and file operations and checks that each leaves no goroutine behind.
func TestCancelled(t *testing.T) {
	s := box(t, nil, env.Spec{})
	sh(t, s, env.Limits{}, "true")
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			c, cancel := context.WithTimeout(ctx, time.Duration(i*5)*time.Millisecond)
			defer cancel()
			_, err := s.Exec(c, env.Command{Argv: []string{"/bin/sh", "-c", "head -c 10000000 /dev/zero; sleep 1000"}, Stdin: make([]byte, 1<<20)})
			if milepost.KindOf(err) != milepost.KindCanceled {
				t.Errorf("a cancelled command: %v", err)
			}
		})
	}
	wg.Wait()
	wantGoroutines(t, before)
	alive(t, s, "40 cancelled commands")
}

// wantGoroutines waits a moment for those that are about to end, then wants no more than there were.
func wantGoroutines(t testing.TB, before int) {
	t.Helper()
	var now int
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		if now = runtime.NumGoroutine(); now <= before {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d goroutines, before %d:\n%s", now, before, buf[:runtime.Stack(buf, true)])
}
