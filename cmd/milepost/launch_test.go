package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost/configs"
)

// TestLaunchRecipes: the recipes that train are written for every target that they can have.
func TestLaunchRecipes(t *testing.T) {
	for _, name := range []string{"swe_mile_bug_repair_9b", "swe_mile_repo_generation_35b_a3b", "nebius_stage2"} {
		for _, target := range []string{"slurm", "kubernetes"} {
			out := filepath.Join(t.TempDir(), "out")
			code, said, errs := milepostRun(t, "launch", "--target", target, "-c", name, "--out", out,
				"--set", "model=/shared/m", "--set", "tasks.train=/shared/t", "--set", "run.dir=/shared/run")
			if code != exitDone || !strings.Contains(said, "it with: ") {
				t.Errorf("%s, %s: code %d: %s%s", name, target, code, said, errs)
				continue
			}
			if ends := strings.HasSuffix(said, "with: kubectl delete -f "+out+"\n"); ends != (target == "kubernetes") {
				t.Errorf("%s, %s: %s", name, target, said)
			}
			if target == "slurm" { // the configuration beside the job is whole and says the same
				cfg, err := configs.Load(filepath.Join(out, "config.yaml"), nil)
				if err != nil || cfg.Model != "/shared/m" || cfg.Run.Dir != "/shared/run" || cfg.Extends != "" {
					t.Errorf("%s: %+v, model %q, %v", name, cfg.Run, cfg.Model, err)
				}
			}
		}
	}
}

// TestLaunchDrain: schedulers wait for the slowest of workers and servers; what is no key is no obstacle.
func TestLaunchDrain(t *testing.T) {
	cfg, err := configs.Load("quickstart", []string{"model=/m", "tasks.train=/t", "serve.drain_timeout=9m", "server.env={TOKENIZERS_PARALLELISM: false, VLLM_MAX_TOKENS: 5}"})
	if err != nil {
		t.Fatal(err)
	}
	if spec, err := launchSpec(cfg); err != nil || spec.Drain != 9*time.Minute || spec.Notice() != 9*60+30+90 {
		t.Errorf("drain %v, notice %d s, %v", spec.Drain, spec.Notice(), err)
	}
}

func TestLaunchRefuses(t *testing.T) {
	ready := []string{"--set", "model=/shared/m", "--set", "tasks.train=/shared/t"}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no target":      {ready, exitUsage, `--target is ""; allowed: local, slurm, kubernetes`},
		"no model":       {[]string{"--target", "slurm"}, exitUsage, "model and tasks.train must be set"},
		"a secret":       {append([]string{"--target", "slurm", "--set", "probes.server.token=x"}, ready...), exitUsage, "holds a secret"},
		"a messenger":    {append([]string{"--target", "slurm", "--set", "probes.connect.url=nats://h:1"}, ready...), exitUsage, "leave it empty"},
		"a server's key": {append([]string{"--target", "slurm", "--set", "server.env={TOKENIZERS_PARALLELISM: false, HF_TOKEN: x}"}, ready...), exitUsage, "server.env.HF_TOKEN is a secret"},
		"a token":        {append([]string{"--target", "slurm", "--set", "server.args=[--long-prefill-token-threshold, 5, --hf-token, x]"}, ready...), exitUsage, "--hf-token of server.args is a secret"},
		"a variable":     {append([]string{"--target", "slurm", "--set", "server.command=[env, HF_TOKEN=x, vllm]"}, ready...), exitUsage, "HF_TOKEN of server.command is a secret"},
		"a chat's key":   {append([]string{"--target", "slurm", "--set", "policy.chat.extra={api_key: x}"}, ready...), exitUsage, "policy.chat.extra.api_key is a secret"},
		"a user":         {append([]string{"--target", "slurm", "--set", "server.urls=[http://u:p@h:1]"}, ready...), exitUsage, "before @ in server.urls is a secret"},
		"an API key":     {append([]string{"--target", "slurm", "--set", "server.args=[--api-key, x]"}, ready...), exitUsage, "--api-key of server.args is a secret"},
		"trackers": {[]string{"--target", "kubernetes", "--set", "model=/shared/m", "--set", "tasks.train=/shared/t", "--set", "run.dir=/shared/r", "--set", "trackers.wandb.enabled=true"},
			exitUsage, "trackers are enabled"},
		"a CPU's server":  {append([]string{"--target", "slurm", "--set", "launch.gpus_per_node=8"}, ready...), exitUsage, "server.command is empty, which is the pinned vLLM for CPUs, and launch.gpus_per_node is 8; allowed: "},
		"another command": {append([]string{"--target", "slurm", "--set", "launch.command=rft"}, ready...), exitUsage, "launch.command is rft, so this recipe is for milepost rft, which launch does not start; allowed: train"},
		"not in there":    {append([]string{"--target", "kubernetes"}, ready...), exitUsage, "is not below launch.kubernetes.mount"},
	} {
		out := filepath.Join(t.TempDir(), "out")
		code, _, errs := milepostRun(t, append([]string{"launch", "-c", "quickstart", "--out", out}, c.args...)...)
		if _, err := os.Stat(out); code != c.code || !strings.Contains(errs, c.want) || err == nil {
			t.Errorf("%s: code %d, %s, written %v", name, code, errs, err == nil)
		}
	}
	if code, _, errs := milepostRun(t, append([]string{"launch", "--target", "slurm", "-c", "nebius_rft", "--out", filepath.Join(t.TempDir(), "out")}, ready...)...); code != exitUsage || !strings.Contains(errs, "launch.command is rft") {
		t.Errorf("nebius_rft: code %d, %s", code, errs)
	}
	if code, _, errs := milepostRun(t, "launch", "--target", "local", "-c", "quickstart"); code != exitUsage || !strings.Contains(errs, "--out is missing") {
		t.Errorf("no --out: code %d, %s", code, errs)
	}
}

// TestResumeElsewhere: --set may change where things are, and nothing else.
func TestResumeElsewhere(t *testing.T) {
	dir := t.TempDir()
	text, err := configs.Default().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.yaml"), string(text))
	cfg, err := loadRun(configFlags{set: []string{"trainer.address=n7:29600", "server.urls=[http://n8:8000]", "weights.transfer.host=10.0.0.7"}}, dir)
	if err != nil || cfg.Weights.Transfer.Host != "10.0.0.7" || cfg.Trainer.Address != "n7:29600" || len(cfg.Server.URLs) != 1 || cfg.Run.Dir != dir {
		t.Errorf("%+v, %v", cfg.Trainer, err)
	}
	if _, err := loadRun(configFlags{set: []string{"schedule.max_updates=3"}}, dir); err == nil || !strings.Contains(err.Error(), "where things are alone: trainer.address,") {
		t.Error(err)
	}
}

// TestPartBeginsAgain: part.sh begins a part anew that ended, resumes a run that has a folder, gives up on wrong use, hands
// a signal on, and its commands are ones that this program understands.
func TestPartBeginsAgain(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	out := filepath.Join(dir, "out")
	code, _, errs := milepostRun(t, "launch", "--target", "local", "-c", "quickstart", "--out", out, "--program", filepath.Join(dir, "milepost"),
		"--set", "model=/m", "--set", "tasks.train=/t", "--set", "run.dir="+run, "--set", "launch.rollout_workers=1", "--set", "weights.method=transfer")
	if code != exitDone {
		t.Fatal(errs)
	}
	// A stand-in that notes its arguments: the first call of a part fails, the second makes the run folder, the third is done.
	write(t, filepath.Join(dir, "milepost"), `#!/bin/sh
echo "$@" >>`+dir+`/calls
n=$(wc -l <`+dir+`/calls)
[ "$n" != 2 ] || { mkdir -p `+run+`; touch `+run+`/config.yaml; }
[ "$n" -ge 3 ] || exit 1
`)
	if err := os.Chmod(filepath.Join(dir, "milepost"), 0o755); err != nil {
		t.Fatal(err)
	}
	part := func(ctx context.Context, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, filepath.Join(out, "part.sh"), args...)
		c.Env = append(os.Environ(), "MILEPOST_DIR="+out, "MILEPOST_TOKEN_FILE="+dir+"/token", "MILEPOST_NATS_HOSTS=h1", "MILEPOST_TRAINER_HOST=h2",
			"MILEPOST_HOST=127.0.0.1", "MILEPOST_LOCAL="+dir)
		return c
	}
	if b, err := part(t.Context(), "run").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	calls := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(calls) != 3 || !strings.HasPrefix(calls[0], "train -c ") || !strings.HasPrefix(calls[1], "train -c ") || !strings.HasPrefix(calls[2], "train --resume "+run) {
		t.Fatalf("calls:\n%s", b)
	}
	for _, want := range []string{"trainer.address=h2:29600", "probes.connect.url=nats://h1:4222", "server.replicas=0", "workers.mode=remote", "probes.local=false", "trainer.ranks=1"} {
		if !strings.Contains(calls[0], want) {
			t.Errorf("no %s in %s", want, calls[0])
		}
	}
	for _, c := range []string{calls[0], calls[2]} {
		if !strings.Contains(c, "weights.transfer.host=h2") {
			t.Errorf("the servers do not learn where the trainer is: %s", c)
		}
	}
	for _, name := range []string{"nats", "serve", "trainer", "shadow", "rollout", "run"} {
		write(t, filepath.Join(dir, "milepost"), "#!/bin/sh\nprintf '%s\\n' \"$@\" >"+dir+"/args\nexit 2\n")
		if err := part(t.Context(), name, "0").Run(); err == nil || err.Error() != "exit status 2" {
			t.Errorf("%s: wrong use is tried again: %v", name, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "args"))
		if err != nil {
			t.Fatal(err)
		}
		understood(t, strings.Split(strings.TrimSpace(string(b)), "\n"))
	}
	write(t, filepath.Join(dir, "milepost"), "#!/bin/sh\ntrap 'exit 7' TERM\ntouch "+dir+"/up\nsleep 60 & wait\n")
	c := part(t.Context(), "shadow")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for !exists(filepath.Join(dir, "up")) {
		time.Sleep(10 * time.Millisecond)
	}
	_ = c.Process.Signal(os.Interrupt)
	if err := c.Wait(); err == nil || err.Error() != "exit status 7" {
		t.Errorf("after a signal: %v", err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// understood parses a command line by the program's own flags.
func understood(t *testing.T, args []string) {
	t.Helper()
	c, rest, err := newRootCommand().Find(args)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err != nil || c.HasSubCommands() {
		t.Errorf("%v: %v", args, err)
	}
}

// TestNATSCluster: three servers as launch starts them are one cluster, which keeps three copies, answers without one of
// them, and takes nobody without the token.
func TestNATSCluster(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	write(t, token, "secret\n")
	var clients, routes []string
	for range 3 {
		clients, routes = append(clients, fmt.Sprint("127.0.0.1:", freePort(t))), append(routes, fmt.Sprint("127.0.0.1:", freePort(t)))
	}
	ctx, stop := context.WithCancel(t.Context())
	var cancels []context.CancelFunc
	var running sync.WaitGroup
	for i := range 3 {
		one, cancel := context.WithCancel(ctx)
		cancels = append(cancels, cancel)
		running.Go(func() {
			root := newRootCommand()
			root.SetOut(os.Stderr)
			if code := run(one, root, []string{"nats", "--name", fmt.Sprint("n", i), "--dir", filepath.Join(dir, fmt.Sprint(i)), "--listen", clients[i], "--cluster", routes[i],
				"--routes", strings.Join(routes, ","), "--token-file", token}); code != exitDone {
				t.Errorf("server %d ended with %d", i, code)
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	url := "nats://" + strings.Join(clients, ",nats://")
	nc, err := nats.Connect(url, nats.Token("secret"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, try func(context.Context) error) {
		t.Helper()
		var err error
		for range 150 {
			c, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			err = try(c)
			if cancel(); err == nil {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Fatalf("%s: %v", what, err)
	}
	until("a stream of three copies", func(c context.Context) error {
		_, err := js.CreateStream(c, jetstream.StreamConfig{Name: "s", Subjects: []string{"s"}, Replicas: 3})
		return err
	})
	until("a message", func(c context.Context) error { _, err := js.Publish(c, "s", []byte("1")); return err })
	cancels[0]()
	until("a message without the first server", func(c context.Context) error { _, err := js.Publish(c, "s", []byte("2")); return err })
	if _, err := nats.Connect("nats://"+clients[1], nats.Timeout(2*time.Second)); err == nil {
		t.Error("a stranger was let in")
	}
}

// TestImages builds the image of orchestrator and workers where no registry answers, and runs the program in it.
func TestImages(t *testing.T) {
	if testing.Short() {
		t.Skip("builds images")
	}
	if why, err := exec.Command("../../build/docker-engine", "missing").Output(); err != nil || len(why) > 0 {
		t.Skipf("no Docker engine: %s", why)
	}
	program := filepath.Join(t.TempDir(), "milepost")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	c := exec.CommandContext(t.Context(), "../../build/images", "check")
	c.Env = append(os.Environ(), "MILEPOST="+program)
	if b, err := c.CombinedOutput(); err != nil || !strings.Contains(string(b), "images: ok") {
		t.Errorf("%v: %s", err, b)
	}
}
