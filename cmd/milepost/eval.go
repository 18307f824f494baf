package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

func newEvalCommand() *cobra.Command {
	var flags configFlags
	var o evalOptions
	c := &cobra.Command{
		Use:   "eval -c FILE --tasks DIR (--model DIR | --chat URL --chat-model NAME | --script NAME)",
		Short: "Measure a policy on a task set",
		Long: "Runs samples attempts at each task, grades the final trees in fresh sandboxes, and prints the resolved share with a\n" +
			"95 % interval over tasks. The policy is a model directory that vLLM serves, the servers of server.urls, any\n" +
			"OpenAI-compatible chat endpoint (key from the environment variable OPENAI_API_KEY), or a script that proves a task\n" +
			"set through the agent loop: reference applies the reference patch, idle submits at once.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadRun(flags, "")
			if err != nil {
				return err
			}
			result, err := evaluate(c.Context(), cfg, o, newProgress(c.ErrOrStderr()))
			if err != nil {
				return err
			}
			if o.json {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(result)
			}
			fmt.Fprintf(c.OutOrStdout(), "resolved %.3f (95 %% interval %.3f to %.3f) over %d tasks, %d attempts graded, %d lost to infrastructure\n",
				result.Rate, result.Low, result.High, len(result.Tasks), result.Graded, result.Infra)
			return nil
		},
	}
	flags.register(c, "")
	c.Flags().StringVar(&o.tasks, "tasks", "", "task folder")
	c.Flags().StringVar(&o.model, "model", "", "model directory to serve")
	c.Flags().StringVar(&o.chat, "chat", "", "base address of an OpenAI-compatible chat endpoint")
	c.Flags().StringVar(&o.chatModel, "chat-model", "", "its model name")
	c.Flags().StringVar(&o.script, "script", "", "reference or idle instead of a model")
	c.Flags().IntVar(&o.samples, "samples", 0, "attempts at each task (0 = schedule.eval_samples)")
	c.Flags().BoolVar(&o.json, "json", false, "print the whole result as JSON")
	return c
}

type evalOptions struct {
	tasks, model, chat, chatModel, script string
	samples                               int
	json                                  bool
}

// scripts are the policies of --script.
var scripts = map[string]func() *expert.Model{"reference": expert.NewReference, "idle": expert.NewIdle}

func (o *evalOptions) check(cfg configs.Run) error {
	switch {
	case o.tasks == "":
		return &usageError{errors.New("--tasks is missing")}
	case (o.chat == "") != (o.chatModel == ""):
		return &usageError{errors.New("--chat and --chat-model go together")}
	case o.chat != "" && o.model != "":
		return &usageError{errors.New("--chat and --model exclude each other")}
	case o.script != "" && (o.model != "" || o.chat != ""):
		return &usageError{errors.New("--script excludes --model and --chat")}
	case o.script != "" && scripts[o.script] == nil:
		return &usageError{fmt.Errorf("--script %q is not one of reference, idle", o.script)}
	case o.script == "" && o.chat == "" && o.model == "" && cfg.Model == "" && len(cfg.Server.URLs) == 0:
		return &usageError{errors.New("no policy: give --model, --chat, --script or server.urls")}
	case o.samples < 0 || o.samples > 10000:
		return &usageError{fmt.Errorf("--samples is %d; allowed are 0 to 10000", o.samples)}
	}
	return nil
}

func evaluate(ctx context.Context, cfg configs.Run, o evalOptions, p *progress) (result orchestrator.Evaluation, err error) {
	if err := o.check(cfg); err != nil {
		return result, err
	}
	tasks, err := benchmarks.Load(o.tasks)
	if err != nil {
		return result, err
	}
	dir := filepath.Join(cfg.Run.Dir, "eval-"+time.Now().UTC().Format("20060102T150405"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return result, milepost.Wrap("eval", milepost.KindUnavailable, err)
	}
	w, err := openWorld(cfg, dir)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	probes, err := openProbing(ctx, cfg, w, dir, filepath.Base(dir)+"-"+rand.Text()[:10], 1, tasks, func(e error) { p.line("warning: %v", e) })
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, probes.close()) }()
	model, serving, err := evalModel(ctx, cfg, o, dir, p)
	if err != nil {
		return result, err
	}
	if serving != nil {
		defer func() { err = errors.Join(err, serving.close()) }()
		guarded, release := serving.guard(ctx)
		defer release()
		ctx = guarded
	}
	rolls, err := newRollouts(cfg, w, model, probes)
	if err != nil {
		return result, err
	}
	samples := o.samples
	if samples == 0 {
		samples = cfg.Schedule.EvalSamples
	}
	byID, specs := orchestrator.Attempts("eval", tasks, samples, cfg.Run.Seed)
	began, done := time.Now(), 0
	eps, err := orchestrator.Collect(ctx, rolls, probes, byID, specs, collectBounds(cfg, cfg.Schedule.Concurrency), func(*milepost.Episode) {
		done++
		p.count("attempts", done, len(specs), time.Since(began))
	})
	if err != nil {
		return result, err
	}
	p.line("episodes and result are in %s", dir)
	defer func() {
		if err == nil && result.Graded == 0 {
			err = milepost.E("eval", milepost.KindUnavailable, "no attempt was graded: all %d were lost to infrastructure; see %s", len(eps), dir)
		}
	}()
	return orchestrator.StoreEvaluation(dir, "eval", eps)
}

// collectBounds are those of the schedule for episodes outside a run.
func collectBounds(cfg configs.Run, concurrency int) orchestrator.Bounds {
	return orchestrator.Bounds{Concurrency: concurrency, MaxRetries: cfg.Schedule.MaxRetries, Barrier: cfg.Schedule.Barrier}
}

// evalModel is the policy to measure, with its server where one was started or is the user's own.
func evalModel(ctx context.Context, cfg configs.Run, o evalOptions, dir string, p *progress) (rollout.Model, *serving, error) {
	if o.script != "" {
		return scripts[o.script](), nil, nil
	}
	if o.chat != "" {
		m, err := chatModel(o.chat, o.chatModel, policy.DefaultChatConfig().NativeTools)
		return m, nil, err
	}
	model := o.model
	if model == "" {
		model = cfg.Model
	}
	s, err := serve(ctx, cfg, absolute(model), filepath.Join(dir, "logs"), p)
	if err != nil {
		return nil, nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	return s.model, s, nil
}

// chatModel is an OpenAI-compatible chat endpoint; its key comes from the environment.
func chatModel(url, name string, nativeTools bool) (rollout.Model, error) {
	cfg := policy.DefaultChatConfig()
	cfg.BaseURL, cfg.Model, cfg.APIKey, cfg.NativeTools = url, name, os.Getenv("OPENAI_API_KEY"), nativeTools
	return policy.NewChatModel(cfg, policy.PoolDeps{})
}
