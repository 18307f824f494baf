package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// trainer is the trainer process and the client that controls it; it implements orchestrator.Learner.
//
// A trainer that an earlier epoch left behind is ended, not adopted: it starts in seconds, and the run loads its last
// checkpoint anyway.
type trainer struct {
	*trainerbridge.Client
	cfg     configs.Run
	process *supervise.Process // nil for a trainer that runs elsewhere
	file    string             // identity of the process, for the next epoch
	told    string             // the process writes its address here
}

func startTrainer(ctx context.Context, cfg configs.Run, dir string) (*trainer, error) {
	t := &trainer{cfg: cfg, file: filepath.Join(dir, "trainer.json"), told: filepath.Join(dir, "trainer.address")}
	address := cfg.Trainer.Address
	if address == "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, milepost.Wrap("start trainer", milepost.KindUnavailable, err)
		}
		if err := t.reap(ctx); err != nil {
			return nil, err
		}
		if err := t.start(dir); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // on a busy machine importing PyTorch alone takes minutes
	defer cancel()
	dial, release := t.guard(ctx) // a trainer that ends at once is not waited for
	defer release()
	client, err := t.dial(dial, address)
	if err != nil && ctx.Err() == nil && dial.Err() != nil {
		err = context.Cause(dial)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	t.Client = client
	return t, nil
}

// dial connects to an address, or, where it is "", to the one that the process tells once it serves.
func (t *trainer) dial(ctx context.Context, address string) (*trainerbridge.Client, error) {
	for address == "" {
		b, err := os.ReadFile(t.told) // it appears whole
		if address = strings.TrimSpace(string(b)); err == nil && address != "" {
			break
		}
		select {
		case <-ctx.Done():
			return nil, milepost.Wrap("start trainer", milepost.KindUnavailable, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return trainerbridge.Dial(ctx, address)
}

// guard returns a context that ends, with the reason as its cause, when the trainer process ends.
func (t *trainer) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if t.process != nil {
		go func() {
			select {
			case <-t.process.Done():
				exit := t.process.Exit()
				cancel(milepost.E("trainer", milepost.KindUnavailable, "the trainer process %d ended (%s)%s", t.process.Identity().PID, exit.Reason, lastLines(exit.Tail)))
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// lastLines puts the end of a process's log behind an error.
func lastLines(tail string) string {
	if tail == "" {
		return ""
	}
	return "; the last lines of its log:\n" + tail
}

// startTrainerBeside starts the trainer in the background; the function it returns waits for it.
func startTrainerBeside(ctx context.Context, cfg configs.Run, dir string) func() (*trainer, error) {
	var t *trainer
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		t, err = startTrainer(ctx, cfg, dir)
	}()
	return func() (*trainer, error) {
		<-done
		return t, err
	}
}

// start starts the process. It chooses its port itself: one that was found free before may be taken by then.
func (t *trainer) start(dir string) error {
	argv, env, err := trainerCommand(t.cfg.Trainer, []string{"--standalone"}, "--listen", "127.0.0.1:0", "--address-file", absolute(t.told))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(t.told); err != nil {
		return milepost.Wrap("start trainer", milepost.KindUnavailable, err)
	}
	t.process, err = supervise.Start(supervise.Spec{Name: "trainer", Argv: argv, Env: env, Log: filepath.Join(dir, "trainer.log")})
	if err != nil {
		return err
	}
	b, err := json.Marshal(t.process.Identity())
	if err == nil {
		err = os.WriteFile(t.file, b, 0o644)
	}
	return milepost.Wrap("start trainer", milepost.KindUnavailable, err)
}

// trainerCommand is the command that serves a trainer, and what it needs in its environment. torchrun are the flags by
// which several ranks find each other; they are left out where there is one process and none are of several nodes.
func trainerCommand(cfg configs.Trainer, torchrun []string, serve ...string) (argv []string, env map[string]string, err error) {
	environment, err := trainerbridge.Environment(trainerbridge.EnvTrainer)
	if err != nil {
		return nil, nil, err
	}
	path, err := trainerbridge.PythonPath()
	if err != nil {
		return nil, nil, err
	}
	env = map[string]string{"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
	threads := cfg.Threads
	if threads == 0 && cfg.Ranks > 1 {
		threads = max(1, runtime.NumCPU()/cfg.Ranks)
	}
	if threads > 0 {
		env["OMP_NUM_THREADS"] = strconv.Itoa(threads)
	}
	argv = []string{filepath.Join(environment, "bin", "python"), "-m"}
	if cfg.Ranks > 1 || len(torchrun) > 1 {
		argv = append(append(argv, "torch.distributed.run"), torchrun...)
		argv = append(argv, "--nproc-per-node", strconv.Itoa(cfg.Ranks), "-m")
	}
	return append(append(argv, "milepost_trainer", "serve"), serve...), env, nil
}

// reap ends the trainer of an earlier epoch.
func (t *trainer) reap(ctx context.Context) error {
	var id supervise.Identity
	b, err := os.ReadFile(t.file)
	if err != nil || json.Unmarshal(b, &id) != nil {
		return nil // none was left
	}
	_, err = supervise.Reap(ctx, []supervise.Identity{id}, 5*time.Second)
	return err
}

func (t *trainer) close() error {
	var err error
	if t.Client != nil {
		err = t.Client.Close()
	}
	if t.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = errors.Join(err, t.process.Stop(ctx), os.RemoveAll(t.file), os.RemoveAll(t.told))
	}
	return err
}

// WriteBatch implements orchestrator.Learner.
func (t *trainer) WriteBatch(path string, rows []orchestrator.Row) (string, error) {
	out := make([]trainerbridge.Row, len(rows))
	for i, r := range rows {
		out[i] = trainerbridge.Row(r)
	}
	return trainerbridge.WriteBatch(path, out)
}

// Update implements orchestrator.Learner.
func (t *trainer) Update(ctx context.Context, update int, path, sha256 string) (map[string]float64, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, milepost.Wrap("update", milepost.KindInvalid, err)
	}
	m, err := t.Client.Update(ctx, trainerbridge.Batch{ID: fmt.Sprintf("u%04d", update), Path: path, SHA256: sha256}, t.cfg.Update)
	if err != nil {
		return nil, err
	}
	var out map[string]float64
	b, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, milepost.Wrap("update", milepost.KindInternal, err)
	}
	out["trainer_time_s"], out["trainer_score_s"] = m.Duration.Seconds(), m.ScoreDuration.Seconds()
	delete(out, "duration")
	delete(out, "score_duration")
	return out, nil
}

// Save implements orchestrator.Learner.
func (t *trainer) Save(ctx context.Context, dir string) error {
	_, err := t.Client.Save(ctx, absolute(dir))
	return err
}

// Export implements orchestrator.Learner: the adapter where servers take adapters, else the whole model.
func (t *trainer) Export(ctx context.Context, dir string) error {
	if t.cfg.Weights.Method == weights.MethodLora {
		_, err := t.ExportAdapter(ctx, absolute(dir))
		return err
	}
	return t.exportModel(ctx, dir)
}

// exportModel writes the whole model.
func (t *trainer) exportModel(ctx context.Context, dir string) error {
	_, err := t.Client.Export(ctx, absolute(dir))
	return err
}

// Values implements orchestrator.Valuer.
func (t *trainer) Values(ctx context.Context, path, sha256 string) ([][]float32, error) {
	return t.Client.Values(ctx, trainerbridge.Batch{Path: absolute(path), SHA256: sha256}, t.cfg.Update.MicroTokens)
}

// Load implements orchestrator.Learner: a checkpoint where dir has a commit marker, else a model (or an exported adapter,
// where one is trained) with a fresh optimizer.
// It has a value head where the estimator needs values.
func (t *trainer) Load(ctx context.Context, dir string) error {
	dir = absolute(dir)
	head := credit.NeedsValues(t.cfg.Credit.Estimator)
	if _, err := os.Stat(filepath.Join(dir, "COMMIT")); err == nil {
		_, err := t.Client.Load(ctx, trainerbridge.LoadRequest{Dir: dir, Reference: t.cfg.Trainer.Reference, ValueHead: head, FreshValueHead: t.cfg.Trainer.FreshValueHead, Recompute: t.cfg.Trainer.Recompute, Options: t.options()})
		return err
	}
	_, err := t.Client.Init(ctx, trainerbridge.InitRequest{Model: dir, Reference: t.cfg.Trainer.Reference, DType: t.cfg.Trainer.DType, Seed: t.cfg.Run.Seed, ValueHead: head, Recompute: t.cfg.Trainer.Recompute, Options: t.options()})
	return err
}

// options are the choices that Init and Load share.
func (t *trainer) options() trainerbridge.Options {
	c := t.cfg.Trainer
	return trainerbridge.Options{Lora: c.Lora, Kernels: c.Kernels, ContextParallel: c.ContextParallel, RoutingReplay: c.RoutingReplay}
}

// absolute is for paths that another process is told; the working directory exists.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}
