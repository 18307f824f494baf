package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/launch"
	"github.com/milepost-rl/milepost/internal/modeldir"
	"github.com/milepost-rl/milepost/internal/plan"
	"github.com/milepost-rl/milepost/orchestrator"
)

// planFlags are what no configuration says: the GPU, where it differs, and how long things are.
type planFlags struct {
	gpu, shape               string
	memory, flops, bandwidth float64
	sampled, context, turns  float64
	probes                   float64
	tool, test               time.Duration
	asJSON                   bool
}

func newPlanCommand() *cobra.Command {
	var flags configFlags
	var f planFlags
	c := &cobra.Command{
		Use:   "plan -c FILE",
		Short: "Say what a run needs of its GPUs: memory, tokens, time, bottleneck; exit code 1 where it does not fit",
		Long: "Reckons, from the configuration and config.json of its model alone, the memory of each GPU of trainer and servers, the\n" +
			"arithmetic of an update and how long each stage takes. docs/plan.md has the formulas and how near they come.\n\n" +
			"GPUs: " + strings.Join(plan.GPUs(), ", ") + "\nShapes: " + strings.Join(modeldir.Presets(), ", "),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if err := f.check(); err != nil {
				return err
			}
			in, err := f.input(cfg)
			if err != nil {
				return err
			}
			r := plan.Make(in)
			if c := cfg.Launch.Command; c != launch.CommandTrain {
				r.Warnings = append(r.Warnings, fmt.Sprintf("launch.command is %s: memory of the trainer holds, but servers, tokens and times are those of milepost train", c))
			}
			if err := f.print(c.OutOrStdout(), r); err != nil {
				return err
			}
			if n := len(r.Problems); n > 0 {
				return milepost.E("plan", milepost.KindConflict, "%d things do not fit", n)
			}
			return nil
		},
	}
	flags.register(c, "")
	fl := c.Flags()
	fl.StringVar(&f.gpu, "gpu", "", "kind of GPU, instead of launch.gpu")
	fl.Float64Var(&f.memory, "gpu-memory", 0, "memory of a GPU in GiB, instead of its kind's")
	fl.Float64Var(&f.flops, "gpu-flops", 0, "dense bfloat16 operations a second, in 1e12, instead of its kind's")
	fl.Float64Var(&f.bandwidth, "gpu-bandwidth", 0, "bytes a second of its memory, in 1e12, instead of its kind's")
	fl.StringVar(&f.shape, "model-shape", "", "shape to reckon with where the model is not on disk, instead of launch.shape")
	fl.Float64Var(&f.context, "context", 0, "tokens of a whole episode on average; default half of the longest")
	fl.Float64Var(&f.sampled, "sampled", 0, "tokens that an episode samples on average; default a quarter of --context")
	fl.Float64Var(&f.turns, "turns", 0, "model calls of an episode on average; default half of rollout.max_turns")
	fl.Float64Var(&f.probes, "probes", 0, "test runs of an episode on average; default a fifth of --turns, and the verdict")
	fl.DurationVar(&f.tool, "tool", time.Second, "time of a tool call on average")
	fl.DurationVar(&f.test, "test", 30*time.Second, "time of a test run on average")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	return c
}

// modelShape is the model's on disk, or the one that is named.
func (f *planFlags) modelShape(cfg configs.Run) (name string, s modeldir.Shape, err error) {
	name = orElse(f.shape, cfg.Launch.Shape)
	switch {
	case f.shape == "" && cfg.Model != "":
		s, err = modeldir.Read(cfg.Model)
		return cfg.Model, s, err
	case name == "":
		return "", s, &usageError{fmt.Errorf("neither model nor launch.shape is set; give --model-shape NAME: %s", strings.Join(modeldir.Presets(), ", "))}
	}
	s, err = modeldir.Preset(name)
	return name, s, err
}

// check refuses lengths and times below zero; zero is the default, or nothing.
func (f *planFlags) check() error {
	for _, given := range []struct {
		name  string
		value float64
	}{{"context", f.context}, {"sampled", f.sampled}, {"turns", f.turns}, {"probes", f.probes}, {"tool", f.tool.Seconds()}, {"test", f.test.Seconds()}} {
		if !(given.value >= 0) || math.IsInf(given.value, 0) {
			return &usageError{fmt.Errorf("--%s is %g; allowed: 0 or more", given.name, given.value)}
		}
	}
	return nil
}

// accelerator is the GPU to reckon with, nil where none is named.
func (f *planFlags) accelerator(cfg configs.Run) (*plan.GPU, error) {
	name := orElse(f.gpu, cfg.Launch.GPU)
	g := plan.GPU{Name: "as given", Link: 450e9}
	if name != "" {
		var err error
		if g, err = plan.FindGPU(name); err != nil {
			return nil, &usageError{err}
		}
	}
	for _, given := range []struct {
		value, unit float64
		into        *float64
	}{{f.memory, 1 << 30, &g.Memory}, {f.flops, 1e12, &g.FLOPs}, {f.bandwidth, 1e12, &g.Bandwidth}} {
		if given.value < 0 {
			return nil, &usageError{fmt.Errorf("--gpu-memory, --gpu-flops and --gpu-bandwidth must be positive")}
		}
		if given.value > 0 {
			*given.into = given.value * given.unit
		}
	}
	switch {
	case g.Memory == 0 && g.FLOPs == 0 && g.Bandwidth == 0:
		return nil, nil
	case g.Memory == 0 || g.FLOPs == 0 || g.Bandwidth == 0:
		return nil, &usageError{fmt.Errorf("without --gpu, all of --gpu-memory, --gpu-flops and --gpu-bandwidth are needed")}
	}
	return &g, nil
}

func (f *planFlags) input(cfg configs.Run) (plan.Input, error) {
	name, shape, err := f.modelShape(cfg)
	if err != nil {
		return plan.Input{}, err
	}
	gpu, err := f.accelerator(cfg)
	if err != nil {
		return plan.Input{}, err
	}
	context, longest := shape.MaxContext, orZero(cfg.Rollout.MaxContext, cfg.Server.MaxModelLen)
	if cfg.Yarn.On() {
		context = max(context, cfg.Yarn.Context())
	}
	size := 2
	if cfg.Server.DType == "float32" {
		size = 4
	}
	in := plan.Input{
		Model: name, Shape: shape, GPU: gpu, Nodes: cfg.Launch.TrainerNodes, Replicas: cfg.Launch.Replicas, Context: context, Longest: longest,
		Every: cfg.Schedule.CheckpointEvery, Kept: cfg.Schedule.Retention.Checkpoints,
		Trainer: plan.Trainer{
			Ranks: cfg.Trainer.Ranks * cfg.Launch.TrainerNodes, Share: cfg.Trainer.ContextParallel, BFloat16: cfg.Trainer.DType == "bfloat16", Recompute: cfg.Trainer.Recompute,
			Tokens: max(cfg.Update.MicroTokens, min(longest, cfg.Server.MaxModelLen)), Steps: optimizerSteps(cfg), Epochs: cfg.Update.Epochs, Scored: cfg.Trainer.Reference != "", Reference: cfg.Trainer.Reference != "" && !(cfg.Trainer.Lora.Enabled && filepath.Clean(cfg.Trainer.Reference) == filepath.Clean(cfg.Model)),
		},
		Server: plan.Server{Parallel: cfg.Server.TensorParallel, Size: size, MaxModelLen: cfg.Server.MaxModelLen, Utilization: utilization(cfg.Server.Args)},
		Work:   f.workload(cfg, longest),
	}
	if cfg.Trainer.Lora.Enabled {
		in.Trainer.Adapter = cfg.Trainer.Lora.Rank
	}
	if gpu == nil {
		in.Server.KVCache = float64(cfg.Server.KVCacheGB) * (1 << 30)
	}
	return in, nil
}

// utilization is vLLM's share of a GPU, as given or its default.
func utilization(args []string) float64 {
	share := .9
	for i, a := range args {
		value, ok := strings.CutPrefix(a, "--gpu-memory-utilization=")
		if !ok && a == "--gpu-memory-utilization" && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if ok {
			_, _ = fmt.Sscanf(value, "%g", &share) // vLLM says what is wrong with it
		}
	}
	return share
}

func optimizerSteps(cfg configs.Run) int {
	episodes, u := cfg.Schedule.GroupsPerUpdate*cfg.Schedule.GroupSize, cfg.Update
	if u.MinibatchSequences > 0 {
		return u.Epochs * ((episodes + u.MinibatchSequences - 1) / u.MinibatchSequences)
	}
	return u.Epochs * min(u.Minibatches, episodes)
}

// atOnce is how many episodes are under way at once: where a launched run has rollout workers, what they have slots for, which
// schedule.concurrency bounds in mode async alone.
func atOnce(cfg configs.Run) int {
	slots := cfg.Launch.RolloutWorkers * cfg.Workers.Worker.Slots
	switch {
	case slots == 0:
		return cfg.Schedule.Concurrency
	case cfg.Schedule.Mode == orchestrator.ModeAsync:
		return min(slots, cfg.Schedule.Concurrency)
	}
	return slots
}

func (f *planFlags) workload(cfg configs.Run, longest int) plan.Workload {
	s, l := cfg.Schedule, cfg.Launch
	w := plan.Workload{
		Episodes: s.GroupsPerUpdate * s.GroupSize, Begun: max(1, s.Sampling.Oversample), Concurrency: atOnce(cfg), Async: s.Mode == orchestrator.ModeAsync,
		Context: f.context, Sampled: f.sampled, Turns: f.turns, Probes: f.probes, Tool: f.tool.Seconds(), Test: f.test.Seconds(),
		Slots: cfg.Probes.Worker.Slots * max(1, l.ShadowWorkers),
	}
	if w.Context == 0 {
		w.Context = float64(longest) / 2
	}
	if w.Sampled == 0 {
		w.Sampled = w.Context / 4
	}
	if w.Turns == 0 {
		w.Turns = float64(cfg.Rollout.MaxTurns) / 2
	}
	if w.Probes == 0 {
		if w.Probes = 1; cfg.Rollout.ProbeSteps {
			w.Probes += w.Turns / 5
		}
	}
	return w
}

func orZero(n, other int) int {
	if n == 0 {
		return other
	}
	return n
}

func (f *planFlags) print(out io.Writer, r plan.Result) error {
	if f.asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return milepost.Wrap("plan", milepost.KindUnavailable, enc.Encode(r))
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	gpu := "no GPU named, so nothing is compared: give --gpu"
	if r.GPU != nil {
		gpu = fmt.Sprintf("%s: %.0f GiB, %.0f TFLOP/s, %.2f TB/s", r.GPU.Name, r.GPU.Memory/(1<<30), r.GPU.FLOPs/1e12, r.GPU.Bandwidth/1e12)
	}
	fmt.Fprintf(out, "%s: %.2f billion parameters, %.2f active\n%s\n\n", r.Model, float64(r.Parameters)/1e9, float64(r.Active)/1e9, gpu)
	items := func(title string, items []plan.Item) {
		fmt.Fprintf(out, "%s\n", title)
		for _, i := range items {
			fmt.Fprintf(t, "%.2f GiB\t  %s\t\n", i.Bytes/(1<<30), i.Name)
		}
		fmt.Fprintf(t, "%.2f GiB\t  in all\t\n", plan.Sum(items)/(1<<30))
		_ = t.Flush()
	}
	items(fmt.Sprintf("Trainer, each of %d ranks (and %.1f GiB of the first node's memory at an export)", r.Ranks, r.Host/(1<<30)), r.Trainer)
	items(fmt.Sprintf("Server, each GPU of %d replicas", r.Replicas), r.Serving.Items)
	fmt.Fprintf(out, "%d bytes of KV cache a token; %d tokens fit, %.1f sequences of full length a replica\n\n", r.Serving.KVToken, r.Serving.KVTokens, r.Serving.Sequences)
	fmt.Fprintf(out, "Disk: %.2f GiB a checkpoint; %.2f GiB for those that stay and the one being written\n\n", r.Checkpoint/(1<<30), r.Disk/(1<<30))
	w := r.Work
	fmt.Fprintf(out, "An update: %d episodes of %.0f tokens (%.0f sampled, %.0f turns): %.3g tokens, %.3g operations\n", w.Episodes, w.Context, w.Sampled, w.Turns, r.Tokens, r.FLOPs)
	for _, s := range r.Stages {
		fmt.Fprintf(out, "  %-10s %9s  %s\n", s.Name, time.Duration(s.Seconds*float64(time.Second)).Round(time.Second), s.Why)
	}
	if r.Bottleneck != "" {
		fmt.Fprintf(out, "  %-10s %9s  bottleneck: %s\n", "update", time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), r.Bottleneck)
	}
	for _, text := range r.Warnings {
		fmt.Fprintf(out, "warning: %s\n", text)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "does not fit: %s\n", p.What)
		for _, try := range p.Try {
			fmt.Fprintf(out, "  try %s\n", try)
		}
	}
	return nil
}
