package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// scripts are the policies of --script.
var scripts = map[string]func(configs.Run) (*expert.Model, error){
	"reference": func(configs.Run) (*expert.Model, error) { return expert.NewReference(), nil },
	"idle":      func(configs.Run) (*expert.Model, error) { return expert.NewIdle(), nil },
	"expert":    func(cfg configs.Run) (*expert.Model, error) { return expert.New(cfg.RFT.Expert) },
}

// chat is the chat endpoint to measure: the one that flags name, else the configured one where no flag names another
// policy. Without an address there is none. Its key comes from the environment.
func (o *evalOptions) chat(cfg configs.Run) policy.ChatConfig {
	chat := cfg.Policy.Chat
	switch {
	case o.Chat != "":
		chat.BaseURL, chat.Model = o.Chat, o.ChatModel
	case o.Model != "" || o.Script != "":
		chat.BaseURL = ""
	}
	chat.APIKey = os.Getenv("OPENAI_API_KEY")
	return chat
}

// policyName is what the result calls the policy, and where it is served as far as that is known before it is.
func policyName(cfg configs.Run, o evalOptions) (name, endpoint string) {
	switch {
	case o.Script != "":
		return "script-" + o.Script, ""
	case o.Model != "":
		return absolute(o.Model), ""
	case o.chat(cfg).BaseURL != "":
		chat := o.chat(cfg)
		return chat.Model, chat.BaseURL
	case cfg.Model != "":
		return cfg.Model, ""
	case cfg.Policy.Pool.Model != "":
		return cfg.Policy.Pool.Model, cfg.Server.URLs[0]
	}
	return "model of " + cfg.Server.URLs[0], cfg.Server.URLs[0]
}

// evalModel is the policy to measure, with its server where one was started or is the user's own.
func evalModel(ctx context.Context, cfg configs.Run, o evalOptions, dir string, p *progress) (rollout.Model, *serving, error) {
	if o.Script != "" {
		m, err := scripts[o.Script](cfg)
		return m, nil, err
	}
	if chat := o.chat(cfg); chat.BaseURL != "" {
		m, err := policy.NewChatModel(chat, policy.PoolDeps{})
		return m, nil, err
	}
	model := o.Model
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
	s.trust()
	return s.model, s, nil
}

// chatModel is an OpenAI-compatible chat endpoint that tries tasks for demonstrations; its key comes from the environment.
func chatModel(url, name string, nativeTools bool) (rollout.Model, error) {
	cfg := policy.DefaultChatConfig()
	cfg.BaseURL, cfg.Model, cfg.APIKey, cfg.NativeTools = url, name, os.Getenv("OPENAI_API_KEY"), nativeTools
	return policy.NewChatModel(cfg, policy.PoolDeps{})
}

// endOrphans ends the servers that evaluations below runDir left behind when they were killed: those of folders that no
// process holds. The folder own is left alone: its server is adopted.
func endOrphans(ctx context.Context, runDir, own string, p *progress) error {
	files, err := filepath.Glob(filepath.Join(runDir, "eval-*", "logs", identityFiles))
	if err != nil {
		return milepost.Wrap("eval: look for servers left behind", milepost.KindInvalid, err)
	}
	for _, file := range files {
		dir := filepath.Dir(filepath.Dir(file))
		if dir == own {
			continue
		}
		release, err := orchestrator.Lock(dir)
		if err != nil {
			continue // it is at work
		}
		err = endOrphan(ctx, file, p)
		if err = errors.Join(err, release()); err != nil {
			return err
		}
	}
	return nil
}

func endOrphan(ctx context.Context, file string, p *progress) error {
	if id := readIdentity(file); id != nil {
		ended, err := supervise.Reap(ctx, []supervise.Identity{id.Identity}, 15*time.Second)
		if err != nil {
			return err
		}
		if len(ended) > 0 {
			p.line("ended %s, which a killed evaluation left behind (%s)", ended[0], file)
		}
	}
	return milepost.Wrap("eval: forget a server", milepost.KindUnavailable, os.Remove(file))
}

// collectBounds are those of the schedule for episodes outside a run and an evaluation.
func collectBounds(cfg configs.Run, concurrency int) orchestrator.Bounds {
	return orchestrator.Bounds{Concurrency: concurrency, MaxRetries: cfg.Schedule.MaxRetries, Barrier: cfg.Schedule.Barrier}
}
