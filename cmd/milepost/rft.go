package main

import (
	"bytes"
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
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/benchmarks/trajectories"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

func newRFTCommand() *cobra.Command {
	var flags configFlags
	var out string
	var from demoSource
	c := &cobra.Command{
		Use:   "rft -c FILE --out MODEL_DIR",
		Short: "Rejection fine-tuning: demonstrations, kept where execution accepts them, then a supervised step",
		Long: "Collects demonstrations of the scripted expert on the training tasks through the same loop, tools and sandbox as\n" +
			"training, keeps those that execution accepts (rft.accept), and fine-tunes the model of the configuration on them, or\n" +
			"a tiny one made from nothing where model is empty. Instead of the expert, --chat lets an OpenAI-compatible chat\n" +
			"endpoint try the tasks (key from the environment variable OPENAI_API_KEY), and --demos takes demonstrations as they are:\n" +
			"a JSONL file, or what milepost trajectories import made of other systems' trajectories.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadRun(flags, "")
			if err != nil {
				return err
			}
			if out == "" {
				return &usageError{errors.New("--out is missing; it names the directory for the model")}
			}
			if err := from.check(); err != nil {
				return err
			}
			return runRFT(c.Context(), cfg, newProgress(c.OutOrStdout()), from, absolute(out))
		},
	}
	flags.register(c, "")
	c.Flags().StringVar(&from.file, "demos", "", "demonstrations instead of the scripted expert's: JSONL, or the folder of milepost trajectories import")
	c.Flags().StringVar(&from.chat, "chat", "", "base address of a chat endpoint that tries the tasks instead of the scripted expert")
	c.Flags().StringVar(&from.chatModel, "chat-model", "", "its model name")
	c.Flags().StringVar(&out, "out", "", "directory for the fine-tuned model; must not exist")
	return c
}

// demoSource says where demonstrations come from; the zero value is the scripted expert.
type demoSource struct{ file, chat, chatModel string }

func (d demoSource) check() error {
	if d.file != "" && d.chat != "" {
		return &usageError{errors.New("--demos and --chat exclude each other")}
	}
	if (d.chat == "") != (d.chatModel == "") {
		return &usageError{errors.New("--chat and --chat-model go together")}
	}
	return nil
}

// demos is the file of demonstrations to take as it is; "" where they are to be collected.
func (d demoSource) demos() (string, error) {
	if d.file == "" {
		return "", nil
	}
	info, err := os.Stat(d.file)
	if err != nil {
		return "", milepost.E("rft", milepost.KindNotFound, "--demos: %w", err)
	}
	if !info.IsDir() {
		return d.file, nil
	}
	file := filepath.Join(d.file, trajectories.DemosFile)
	if _, err := os.Stat(file); err != nil {
		return "", milepost.E("rft", milepost.KindNotFound, "--demos %s holds no %s; milepost trajectories import writes one", d.file, trajectories.DemosFile)
	}
	return file, nil
}

// model is who tries the tasks. A chat endpoint writes its calls as text in the configured format, since that text is
// what is trained on.
func (d demoSource) model(cfg configs.Run) (rollout.Model, error) {
	if kind := cfg.Rollout.Condenser.Kind; kind != rollout.CondenseNone {
		return nil, milepost.E("rft", milepost.KindInvalid,
			"rollout.condenser.kind is %s; demonstrations are trained as whole conversations, so they are collected with %s", kind, rollout.CondenseNone)
	}
	if d.chat == "" {
		if s := cfg.Rollout.Scaffold; s != tools.KitMilepost {
			return nil, milepost.E("rft", milepost.KindInvalid,
				"rollout.scaffold is %s; the scripted expert works with %s alone: give --chat or --demos", s, tools.KitMilepost)
		}
		return expert.New(cfg.RFT.Expert)
	}
	return chatModel(d.chat, d.chatModel, false)
}

func runRFT(ctx context.Context, cfg configs.Run, p *progress, from demoSource, out string) (err error) {
	if _, err := os.Stat(out); err == nil {
		return milepost.E("rft", milepost.KindConflict, "%s exists; give another --out", out)
	}
	release, err := orchestrator.Lock(cfg.Run.Dir)
	if err != nil {
		return err
	}
	defer release()
	if err := stretch(&cfg, cfg.Run.Dir); err != nil {
		return err
	}
	demos, err := from.demos()
	if err != nil {
		return err
	}
	if demos == "" {
		if cfg.Tasks.Train == "" {
			return milepost.E("rft", milepost.KindInvalid, "tasks.train is empty and no --demos is given")
		}
		tasks, err := loadCertified(cfg.Tasks.Train, cfg.Tasks.Certificates, p)
		if err == nil {
			err = checkImages(cfg, tasks)
		}
		if err != nil {
			return err
		}
		w, err := openWorld(cfg, filepath.Join(cfg.Run.Dir, "rft"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.close()) }()
		dir := filepath.Join(cfg.Run.Dir, "demos")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return milepost.Wrap("rft", milepost.KindUnavailable, err)
		}
		if err := collectDemos(ctx, cfg, w, tasks, from, dir, p); err != nil {
			return err
		}
		demos = filepath.Join(dir, demosFile)
	}
	t, err := startTrainer(ctx, cfg, filepath.Join(cfg.Run.Dir, "logs"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	model := cfg.Model
	if model == "" {
		model = out + ".init"
		if err := os.RemoveAll(model); err != nil { // what an interrupted attempt left
			return milepost.Wrap("rft", milepost.KindUnavailable, err)
		}
		if err := createModel(ctx, cfg, t, demos, model, p); err != nil {
			return err
		}
	}
	return fineTune(ctx, cfg, t, model, demos, out, p)
}

// demosFile is the demonstrations' name within their directory.
const demosFile = "demos.jsonl"

// collectDemos lets the source's model try every task and writes the accepted conversations to dir.
func collectDemos(ctx context.Context, cfg configs.Run, w *world, tasks []*milepost.Task, from demoSource, dir string, p *progress) (err error) {
	probes, err := openProbing(ctx, cfg, w, dir, "demos-"+rand.Text()[:10], 1, tasks, func(e error) { p.line("warning: %v", e) })
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, probes.close(), os.RemoveAll(filepath.Join(dir, "nats")))
	}()
	model, err := from.model(cfg)
	if err != nil {
		return err
	}
	opened := &openings{Model: model}
	rolls, err := newRollouts(cfg, w, opened, probes)
	if err != nil {
		return err
	}
	byID, specs := orchestrator.Attempts("demo", tasks, cfg.RFT.Attempts, cfg.Run.Seed)
	began, done := time.Now(), 0
	eps, err := orchestrator.Collect(ctx, rolls, probes, byID, specs, collectBounds(cfg, cfg.RFT.Concurrency), func(*milepost.Episode) {
		done++
		p.count("demonstrations", done, len(specs), time.Since(began))
	})
	if err != nil {
		return err
	}
	engine, err := acceptanceEngine(cfg.Credit)
	if err != nil {
		return err
	}
	kept, err := orchestrator.Accept(ctx, cfg.RFT.Accept, eps, byID, probes, engine, cfg.Schedule.Barrier)
	if err != nil {
		return err
	}
	resolved := 0
	for _, ep := range eps {
		if ep.Outcome.Resolved {
			resolved++
		}
	}
	p.line("%d demonstrations, %d resolved, %d accepted by execution (%s)", len(eps), resolved, len(kept), cfg.RFT.Accept)
	if len(kept) < cfg.RFT.Minimum {
		return milepost.E("rft", milepost.KindLimit, "only %d demonstrations were accepted; rft.minimum is %d", len(kept), cfg.RFT.Minimum)
	}
	return writeDemos(filepath.Join(dir, demosFile), opened, answerRole(cfg.Rollout), cfg.RFT.Mask, kept)
}

// writeDemos writes conversations as JSONL, one message a turn, as the policy will see them. The file appears whole.
func writeDemos(path string, opened *openings, answers rollout.Role, mask orchestrator.Mask, eps []*milepost.Episode) error {
	const op = "write demonstrations"
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	for _, ep := range eps {
		if err := enc.Encode(conversation(ep, opened.of(ep.ID), answers, mask)); err != nil {
			return milepost.Wrap(op, milepost.KindInternal, err)
		}
	}
	if err := os.WriteFile(path+".tmp", buf.Bytes(), 0o644); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, errors.Join(err, os.RemoveAll(path+".tmp")))
	}
	return milepost.Wrap(op, milepost.KindUnavailable, os.Rename(path+".tmp", path))
}

// answerRole is the role of observations in the conversations of a configuration.
func answerRole(cfg rollout.Config) rollout.Role {
	if cfg.ToolFormat == toolcall.BashBlock {
		return rollout.RoleUser
	}
	return rollout.RoleTool
}

// conversation is an episode as messages: the opening, then call and observation in turn, up to the last call that is
// trained, unanswered.
func conversation(ep *milepost.Episode, opening []rollout.Message, answers rollout.Role, mask orchestrator.Mask) trajectories.Demo {
	d := trajectories.Demo{ID: ep.ID}
	for _, m := range opening {
		d.Messages = append(d.Messages, trajectories.DemoMessage{Role: string(m.Role), Content: m.Content})
	}
	last := len(ep.Steps) - 1
	for last >= 0 && !mask.Trains(&ep.Steps[last]) {
		last--
	}
	for i := range ep.Steps[:last+1] {
		s := &ep.Steps[i]
		said := trajectories.DemoMessage{Role: "assistant", Content: s.Action.Text}
		if !mask.Trains(s) {
			said.Train = new(bool)
		}
		d.Messages = append(d.Messages, said)
		if i < last {
			d.Messages = append(d.Messages, trajectories.DemoMessage{Role: string(answers), Content: s.Observed})
		}
	}
	return d
}

// acceptanceEngine is the engine that demonstrations are judged by. Acceptance reads potentials alone, which no estimator
// touches, and some estimators need what a demonstration has not: objectives, or values of a value head.
func acceptanceEngine(rules credit.Config) (*credit.Engine, error) {
	rules.Estimator = credit.Default().Estimator
	return credit.New(rules)
}

// createModel makes tokenizer and random weights of the tiny model from the demonstrations.
func createModel(ctx context.Context, cfg configs.Run, t *trainer, demos, out string, p *progress) error {
	parameters, vocab, err := t.CreateModel(ctx, absolute(demos), absolute(out), cfg.RFT.Model)
	if err != nil {
		return err
	}
	p.line("a tiny model: %d parameters, vocabulary %d", parameters, vocab)
	return nil
}

// fineTune trains model on the demonstrations and exports it to out.
func fineTune(ctx context.Context, cfg configs.Run, t *trainer, model, demos, out string, p *progress) error {
	if err := t.Load(ctx, model); err != nil {
		return err
	}
	began := time.Now()
	last, err := t.Supervised(ctx, absolute(demos), cfg.RFT.SFT, func(s trainerbridge.SFTProgress) {
		p.count(fmt.Sprintf("cold start (loss %.3f)", s.Loss), s.Step, s.Steps, time.Since(began))
	})
	if err != nil {
		return err
	}
	p.line("cold start: %d steps, %d tokens, loss %.3f, %.0f s", last.Steps, last.Tokens, last.Loss, time.Since(began).Seconds())
	return t.exportModel(ctx, out)
}
