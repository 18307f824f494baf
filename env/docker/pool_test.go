package docker_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/owner"
)

// TestSlots has more sandboxes wanted than an engine may have: they wait their turn.
func TestSlots(t *testing.T) {
	e := env.New(open(t, func(c *docker.Config) { c.Slots = 2 }))
	defer e.Close()
	a, b := boxIn(t, e, env.Spec{}), boxIn(t, e, env.Spec{})
	c, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := e.Create(c, env.Spec{}); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("a third sandbox where two are allowed: %v", err)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = a.Close(ctx) })
	third := boxIn(t, e, env.Spec{}) // once a is closed
	if e.Open() != 2 {
		t.Errorf("%d sandboxes are open", e.Open())
	}
	for _, s := range []*env.Sandbox{b, third} {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestDeadEngine uses one engine that is there and one that is not.
func TestDeadEngine(t *testing.T) {
	nowhere := "unix://" + filepath.Join(t.TempDir(), "nothing.sock")
	e := env.New(open(t, func(c *docker.Config) { c.Hosts = append([]string{nowhere}, c.Hosts...) }))
	defer e.Close()
	for range 3 {
		alive(t, boxIn(t, e, env.Spec{}), "an engine that is not there")
	}
	cfg := dockertest.Config(t)
	cfg.Hosts = []string{nowhere}
	if _, err := docker.New(ctx, cfg); milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), nowhere) {
		t.Errorf("no engine at all: %v", err)
	}
}

// secondEngine starts an engine of the test's own beside the one that all tests use.
func secondEngine(t *testing.T) (host string, pid int) {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "milepost-engine-")
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../../build/docker-engine")
	if err != nil {
		t.Fatal(err)
	}
	if why, err := exec.Command(script, "missing").Output(); err != nil || len(why) > 0 {
		t.Skipf("no engine can be started: %s %v", why, err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(script, "stop", dir).CombinedOutput(); err != nil {
			t.Errorf("stop the engine: %v %s", err, out)
		}
	})
	out, err := exec.Command(script, "start", dir, strconv.Itoa(os.Getpid())).Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "docker.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		t.Fatal(err)
	}
	host = strings.TrimSpace(string(out))
	if err := dockertest.Import(host, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return host, pid
}

// TestEngineKilled kills an engine under its sandboxes: what they do fails as infrastructure, within seconds, and the next
// sandboxes come from the other engine.
func TestEngineKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an engine of its own")
	}
	host, pid := secondEngine(t)
	cfg := dockertest.Config(t)
	cfg.Hosts, cfg.Retry = append(cfg.Hosts, host), time.Hour
	d, err := docker.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(d)
	var boxes []*env.Sandbox
	for range 4 { // two on each
		boxes = append(boxes, boxIn(t, e, env.Spec{}))
	}
	results := make(chan error, len(boxes))
	for _, s := range boxes {
		go func() {
			_, err := s.Exec(ctx, env.Command{Argv: []string{"sleep", "4"}})
			results <- err
		}()
	}
	time.Sleep(500 * time.Millisecond)
	engine, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Kill(); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for range boxes {
		select {
		case err := <-results:
			if err != nil {
				lost++
				if !milepost.KindOf(err).Infra() {
					t.Errorf("a command on an engine that was killed: %v", err)
				}
			}
		case <-time.After(60 * time.Second):
			t.Fatal("a command waits for an engine that was killed")
		}
	}
	if lost != 2 {
		t.Errorf("%d commands were lost, want 2", lost)
	}
	for range 3 {
		alive(t, boxIn(t, e, env.Spec{}), "the death of the other engine")
	}
	if err := e.Close(); err == nil {
		t.Error("closing sandboxes on an engine that is gone: no error")
	} else if !milepost.KindOf(err).Infra() {
		t.Errorf("closing sandboxes on an engine that is gone: %v", err)
	}
}

// TestLease cuts an owner off from its sandbox, without a word, as a network can: the sandbox ends by itself.
func TestLease(t *testing.T) {
	cfg := dockertest.Config(t)
	cli := dockertest.Client(t, cfg.Hosts[0])
	volumeName := "milepost-lease-test"
	labels := map[string]string{"milepost.owner": "test", "milepost.owner.boot": "elsewhere"}
	if _, err := cli.VolumeCreate(ctx, volume.CreateOptions{Name: volumeName, Labels: labels}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cli.VolumeRemove(ctx, volumeName, true); err != nil {
			t.Error(err)
		}
	}()
	made, err := cli.ContainerCreate(ctx, &container.Config{Image: dockertest.Image, Entrypoint: agent.Argv(2 * time.Second), OpenStdin: true, Labels: labels},
		&container.HostConfig{NetworkMode: "none", Binds: []string{volumeName + ":" + filepath.Dir(agent.Path)}, Tmpfs: map[string]string{agent.Workspace: ""}}, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cli.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	program, err := docker.AgentTar(cfg.Agent)
	if err != nil {
		t.Fatal(err)
	}
	if err := cli.CopyToContainer(ctx, made.ID, filepath.Dir(agent.Path), program, container.CopyToContainerOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := cli.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	ended, failed := cli.ContainerWait(ctx, made.ID, container.WaitConditionNotRunning)
	select {
	case r := <-ended:
		if took := time.Since(begin); r.StatusCode != 3 || took < 2*time.Second {
			t.Errorf("an agent that heard nothing for its lease: exit code %d after %v", r.StatusCode, took)
		}
	case err := <-failed:
		t.Error(err)
	case <-time.After(30 * time.Second):
		t.Error("an agent that hears nothing goes on")
	}
}

// TestReap puts things on an engine that other owners left and starts a driver.
func TestReap(t *testing.T) {
	cfg := dockertest.Config(t)
	cli := dockertest.Client(t, cfg.Hosts[0])
	old := strconv.FormatInt(time.Now().Add(-48*time.Hour).Unix(), 10)
	fresh := strconv.FormatInt(time.Now().Unix(), 10)
	self, err := owner.Current()
	if err != nil {
		t.Fatal(err)
	}
	here := func(pid int, start, made string) map[string]string {
		return map[string]string{"milepost.owner": "other", "milepost.owner.pid": strconv.Itoa(pid), "milepost.owner.start": start,
			"milepost.owner.boot": owner.Boot(), "milepost.owner.space": owner.Space(), "milepost.made": made}
	}
	there := func(made string) map[string]string {
		return map[string]string{"milepost.owner": "other", "milepost.owner.boot": "another", "milepost.made": made}
	}
	cases := map[string]struct {
		labels     map[string]string
		running    bool
		kept       bool // the container
		volumeKept bool
	}{
		"dead":                {here(1<<22, "1", fresh), false, false, false},
		"dead, running":       {here(self.PID, "1", fresh), true, false, false},
		"alive":               {here(self.PID, self.Start, old), false, true, true},
		"elsewhere, fresh":    {there(fresh), false, true, true},
		"elsewhere, old":      {there(old), false, false, false},
		"elsewhere, running":  {there(old), true, true, true}, // its own lease ends it; the volume is in use
		"not of this program": {map[string]string{"other": "x"}, false, true, true},
	}
	ids := map[string]string{}
	for name, c := range cases {
		v, err := cli.VolumeCreate(ctx, volume.CreateOptions{Labels: c.labels})
		if err != nil {
			t.Fatal(err)
		}
		made, err := cli.ContainerCreate(ctx, &container.Config{Image: dockertest.Image, Cmd: []string{"sleep", "1000"}, Labels: c.labels},
			&container.HostConfig{NetworkMode: "none", Binds: []string{v.Name + ":/mnt"}}, nil, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = made.ID
		if c.running {
			if err := cli.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			_ = cli.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true})
			_ = cli.VolumeRemove(ctx, v.Name, true)
		}()
		c.labels["volume"] = v.Name // for the look afterwards; the engine has its own copy
	}
	open(t, nil)
	for name, c := range cases {
		if _, err := cli.ContainerInspect(ctx, ids[name]); (err == nil) != c.kept {
			t.Errorf("%s: the container: %v, kept should be %v", name, err, c.kept)
		}
		if _, err := cli.VolumeInspect(ctx, c.labels["volume"]); (err == nil) != c.volumeKept {
			t.Errorf("%s: the volume: %v, kept should be %v", name, err, c.volumeKept)
		}
	}
}

// TestSomebodyRemoves takes away what a driver believes to be on its engine.
func TestSomebodyRemoves(t *testing.T) {
	var cfg docker.Config
	d := open(t, func(c *docker.Config) { cfg = *c })
	e := env.New(d)
	defer e.Close()
	s := boxIn(t, e, env.Spec{})
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	cli := dockertest.Client(t, cfg.Hosts[0])
	list, err := cli.VolumeList(ctx, volume.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	for _, v := range list.Volumes {
		if strings.HasPrefix(v.Name, "milepost-agent-") && cli.VolumeRemove(ctx, v.Name, false) == nil {
			removed++
		}
	}
	if removed == 0 {
		t.Fatal("there was no volume to remove")
	}
	s = boxIn(t, e, env.Spec{})
	alive(t, s, "the removal of the agent's volume")
	containers, err := cli.ContainerList(ctx, container.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		if c.Labels["milepost.sandbox"] == s.Spec().Name && c.Labels["milepost.owner.pid"] == strconv.Itoa(os.Getpid()) {
			if err := cli.ContainerKill(ctx, c.ID, "KILL"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Exec(ctx, env.Command{Argv: []string{"true"}}); !milepost.KindOf(err).Infra() {
		t.Errorf("a command in a container that somebody killed: %v", err)
	}
	if err := s.Close(ctx); err != nil {
		t.Errorf("closing what is gone: %v", err)
	}
}
