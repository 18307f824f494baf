package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/configs"
)

func newEvalCommand() *cobra.Command {
	var flags configFlags
	var o evalOptions
	c := &cobra.Command{
		Use:   "eval -c FILE --tasks SET (--model DIR | --chat URL --chat-model NAME | --script NAME), or eval --resume DIR",
		Short: "Measure a policy on a task set: pass@k with intervals, selection, tokens, time and cost",
		Long: "Makes --samples attempts at each task, grades the final trees in fresh sandboxes (as the task's data set does, where it\n" +
			"comes from one), and prints unbiased pass@k with 95 % intervals over tasks. SET is a folder of tasks, or a data set that\n" +
			"`milepost tasks import` reads. The policy is a model directory that vLLM serves, the servers of server.urls, any\n" +
			"OpenAI-compatible chat endpoint (key from the environment variable OPENAI_API_KEY), or a script: reference applies the\n" +
			"reference patch, idle submits at once, expert is the imperfect one of rft.expert.\n\n" +
			"The folder gets result.json and result.txt, predictions and reports in SWE-bench's form for each attempt, every\n" +
			"episode, and a journal: after kill -9 or a failure of infrastructure `eval --resume DIR` makes what is missing, and\n" +
			"nothing twice.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := o.load(flags)
			if err != nil {
				return err
			}
			result, err := runEval(c.Context(), cfg, o, newProgress(c.ErrOrStderr()))
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(c.OutOrStdout(), result)
			}
			return evaluate.WriteTable(c.OutOrStdout(), result, o.ks)
		},
	}
	flags.register(c, "")
	o.register(c)
	c.AddCommand(newEvalCompareCommand())
	return c
}

// evalOptions are the flags of eval; those with a name in JSON are kept in the evaluation's folder for --resume.
type evalOptions struct {
	Tasks     string   `json:"tasks"`
	Model     string   `json:"model,omitempty"`
	Chat      string   `json:"chat,omitempty"`
	ChatModel string   `json:"chat_model,omitempty"`
	Script    string   `json:"script,omitempty"`
	Samples   int      `json:"samples"`
	Select    string   `json:"select,omitempty"`
	IDs       []string `json:"ids,omitempty"`
	Limit     int      `json:"limit,omitempty"`

	out, resume string
	ks          []int
	json        bool
}

func (o *evalOptions) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.Tasks, "tasks", "", "task folder, or a data set: a JSONL, JSON or Parquet file, a folder of them, hf://OWNER/NAME")
	f.StringSliceVar(&o.IDs, "ids", nil, "only these tasks")
	f.IntVar(&o.Limit, "limit", 0, "only the first so many tasks; 0 = all")
	f.StringVar(&o.Model, "model", "", "model directory to serve")
	f.StringVar(&o.Chat, "chat", "", "base address of an OpenAI-compatible chat endpoint")
	f.StringVar(&o.ChatModel, "chat-model", "", "its model name")
	f.StringVar(&o.Script, "script", "", "reference, idle or expert instead of a model")
	f.IntVar(&o.Samples, "samples", 0, "attempts at each task (0 = schedule.eval_samples)")
	f.StringVar(&o.Select, "select", "", "visible: choose one attempt a task by the tests that the agent could see")
	f.IntSliceVarP(&o.ks, "k", "k", nil, "k of pass@k to show (default: a choice; result.json has all)")
	f.StringVar(&o.out, "out", "", "folder of the evaluation; must not hold one (default: a new one below run.dir)")
	f.StringVar(&o.resume, "resume", "", "folder of an evaluation to go on with; takes its settings, flags given besides are held against them")
	f.BoolVar(&o.json, "json", false, "print the whole result as JSON")
}

// load reads the configuration: the given one, or the saved one of an evaluation that is resumed, and merges the saved
// flags.
func (o *evalOptions) load(flags configFlags) (configs.Run, error) {
	if o.resume == "" {
		if flags.file == "" {
			flags.file = "reference"
		}
		return loadRun(flags, "")
	}
	if o.out != "" {
		return configs.Run{}, &usageError{errors.New("--out and --resume exclude each other")}
	}
	if flags.file == "" {
		flags.file = filepath.Join(o.resume, evalConfigFile)
	}
	if err := o.merge(); err != nil {
		return configs.Run{}, err
	}
	return loadRun(flags, "")
}

// check reports the first flag that is wrong.
func (o *evalOptions) check(cfg configs.Run) error {
	switch {
	case o.Tasks == "":
		return &usageError{errors.New("--tasks is missing")}
	case (o.Chat == "") != (o.ChatModel == ""):
		return &usageError{errors.New("--chat and --chat-model go together")}
	case o.Chat != "" && o.Model != "":
		return &usageError{errors.New("--chat and --model exclude each other")}
	case o.Script != "" && (o.Model != "" || o.Chat != ""):
		return &usageError{errors.New("--script excludes --model and --chat")}
	case o.Script != "" && scripts[o.Script] == nil:
		return &usageError{fmt.Errorf("--script %q is not one of reference, idle, expert", o.Script)}
	case o.Script == "" && o.Model == "" && o.chat(cfg).BaseURL == "" && cfg.Model == "" && len(cfg.Server.URLs) == 0:
		return &usageError{errors.New("no policy: give --model, --chat, --script, policy.chat or server.urls")}
	case o.Samples < 0 || o.Samples > evaluate.MaxAttempts:
		return &usageError{fmt.Errorf("--samples is %d; allowed are 0 to %d", o.Samples, evaluate.MaxAttempts)}
	case o.Limit < 0:
		return &usageError{fmt.Errorf("--limit is %d; allowed: 0 (all) or more", o.Limit)}
	case o.Select != "" && o.Select != evaluate.SelectVisible:
		return &usageError{fmt.Errorf("--select %q is not %s", o.Select, evaluate.SelectVisible)}
	}
	return checkKs(o.ks, o.samples(cfg), "attempts at each task")
}

// samples is the number of attempts at each task.
func (o *evalOptions) samples(cfg configs.Run) int {
	if o.Samples > 0 {
		return o.Samples
	}
	return cfg.Schedule.EvalSamples
}

// checkKs reports the first k that there are not so many of.
func checkKs(ks []int, most int, what string) error {
	if i := slices.IndexFunc(ks, func(k int) bool { return k < 1 || k > most }); i >= 0 {
		return &usageError{fmt.Errorf("-k %d: there are %d %s; allowed are 1 to %d", ks[i], most, what, most)}
	}
	return nil
}

func newEvalCompareCommand() *cobra.Command {
	var asJSON bool
	var ks []int
	c := &cobra.Command{
		Use:   "compare A B",
		Short: "Set two results beside each other: paired difference over common tasks, with an interval",
		Long: "A and B are folders of evaluations, or their result.json. Tasks that both graded and whose content is the same are\n" +
			"paired; the interval is a bootstrap over these tasks, so it holds for other tasks of the kind, not for other seeds.",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			a, err := evaluate.ReadResult(args[0])
			if err != nil {
				return err
			}
			b, err := evaluate.ReadResult(args[1])
			if err != nil {
				return err
			}
			diff, err := evaluate.Compare(a, b)
			if err != nil {
				return err
			}
			if err := checkKs(ks, len(diff.PassAtK), "attempts in common"); err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), diff)
			}
			return evaluate.WriteComparison(c.OutOrStdout(), diff, ks)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the comparison as JSON")
	c.Flags().IntSliceVarP(&ks, "k", "k", nil, "k of pass@k to show (default: a choice)")
	return c
}

// runEval makes the evaluation, or what is missing of it, and writes its result.
func runEval(ctx context.Context, cfg configs.Run, o evalOptions, p *progress) (_ *evaluate.Result, err error) {
	if err := o.check(cfg); err != nil {
		return nil, err
	}
	e, err := openEval(ctx, cfg, o, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.attempt(ctx); err != nil {
		p.line("what was finished is kept; go on with: milepost eval --resume %s", e.dir)
		return nil, err
	}
	return e.result()
}
