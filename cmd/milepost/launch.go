package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/launch"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

func newLaunchCommand() *cobra.Command {
	var flags configFlags
	var target, out, program string
	c := &cobra.Command{
		Use:   "launch --target local|slurm|kubernetes -c FILE --out DIR",
		Short: "Write what starts all parts of a run: a script, a batch job or manifests",
		Long: "Writes only, and starts nothing: messenger, vLLM replicas, trainer on its nodes, workers and orchestrator, as section\n" +
			"launch of the configuration numbers them. Secrets are not written; docs/launch.md says where they come from.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if out == "" {
				return &usageError{errors.New("--out is missing; it names the folder to write")}
			}
			if !slices.Contains(launch.Targets(), target) {
				return &usageError{fmt.Errorf("--target is %q; allowed: %s", target, strings.Join(launch.Targets(), ", "))}
			}
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			spec, err := launchSpec(cfg)
			if err != nil {
				return err
			}
			spec.ProgramPath = program
			files, err := launch.Write(target, absolute(out), spec)
			if err != nil {
				return err
			}
			slices.Sort(files)
			fmt.Fprintf(c.OutOrStdout(), "%s: %s\n%s\n", out, strings.Join(files, ", "), map[string]string{
				"local":      "start it with: " + filepath.Join(out, "run.sh"),
				"slurm":      "submit it with: cd " + out + " && sbatch run.sbatch",
				"kubernetes": "apply it with: kubectl apply -f " + out + "\nwhen the run is done, its pods stay, with their GPUs; delete them with: kubectl delete -f " + out,
			}[target])
			return nil
		},
	}
	flags.register(c, "")
	c.Flags().StringVar(&target, "target", "", "local, slurm or kubernetes")
	c.Flags().StringVar(&out, "out", "", "folder to write, which must not exist or be empty")
	c.Flags().StringVar(&program, "program", "", "path of milepost on the machines of local and slurm; default: from PATH there")
	return c
}

// launchSpec is what launch needs to know of a configuration. Its paths become absolute, since parts start elsewhere.
func launchSpec(cfg configs.Run) (launch.Spec, error) {
	const op = "launch"
	var err error
	for _, path := range []*string{&cfg.Run.Dir, &cfg.Model, &cfg.Trainer.Reference, &cfg.Tasks.Train, &cfg.Tasks.Validation, &cfg.Tasks.Heldout} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return launch.Spec{}, milepost.Wrap(op, milepost.KindInvalid, err)
		}
	}
	switch {
	case cfg.Launch.Command != launch.CommandTrain:
		return launch.Spec{}, milepost.E(op, milepost.KindInvalid, "launch.command is %s, so this recipe is for milepost %[1]s, which launch does not start; allowed: %s", cfg.Launch.Command, launch.CommandTrain)
	case cfg.Launch.GPUsPerNode > 0 && len(cfg.Server.Command) == 0 && len(cfg.Server.URLs) == 0:
		return launch.Spec{}, milepost.E(op, milepost.KindInvalid, "server.command is empty, which is the pinned vLLM for CPUs, and launch.gpus_per_node is %d; allowed: vLLM's own for GPUs, such as [vllm, serve], or launch.gpus_per_node: 0", cfg.Launch.GPUsPerNode)
	case cfg.Model == "" || cfg.Tasks.Train == "":
		return launch.Spec{}, milepost.E(op, milepost.KindInvalid, "model and tasks.train must be set")
	case cfg.Probes.Server.Token != "" || strings.Contains(cfg.Probes.Connect.URL, "@"):
		return launch.Spec{}, milepost.E(op, milepost.KindInvalid, "probes holds a secret (server.token, or one in connect.url), and what is launched has it in files that others read; the parts take it from a file: see docs/launch.md")
	case secretOf(cfg) != "":
		return launch.Spec{}, milepost.E(op, milepost.KindInvalid, "%s is a secret by its name, and what is launched has it in files that others read: give it to the servers otherwise, for example in their environment", secretOf(cfg))
	case cfg.Probes.Connect.URL != "":
		return launch.Spec{}, milepost.E(op, milepost.KindInvalid, "probes.connect.url is set; launch starts a messenger of its own: leave it empty")
	}
	text, err := cfg.Marshal()
	if err != nil {
		return launch.Spec{}, err
	}
	l := cfg.Launch
	return launch.Spec{
		Config: l, Name: cfg.Run.Name, Run: cfg.Run.Dir, Resolved: text, Model: cfg.Model, Files: []string{cfg.Tasks.Train, cfg.Tasks.Validation, cfg.Tasks.Heldout, cfg.Trainer.Reference},
		Parallel: cfg.Server.TensorParallel, Ranks: cfg.Trainer.Ranks, Docker: cfg.Sandbox.Driver == configs.SandboxDocker && len(cfg.Sandbox.Docker.Hosts) == 0,
		OwnServers: len(cfg.Server.URLs) > 0, OwnTrainer: cfg.Trainer.Address != "",
		Transfer: cfg.Weights.Method == weights.MethodTransfer && cfg.Weights.Transfer.Here(),
		Trackers: cfg.Trackers.Any(), Drain: max(cfg.Probes.Worker.DrainTimeout, cfg.Workers.Worker.DrainTimeout, cfg.Serve.DrainTimeout),
	}, nil
}

// secretOf names the setting that is a key by its name; "" where none is. A word counts by its end: TOKENIZERS_PARALLELISM and
// MAX_TOKENS are no keys. Of flags the last word counts: --long-prefill-token-threshold is none.
func secretOf(cfg configs.Run) string {
	for _, name := range slices.Sorted(maps.Keys(cfg.Server.Env)) {
		if slices.ContainsFunc(strings.Split(name, "_"), endsLikeKey) {
			return "server.env." + name
		}
	}
	for _, words := range []struct {
		field string
		args  []string
	}{{"args", cfg.Server.Args}, {"command", cfg.Server.Command}} {
		for _, a := range words.args {
			if name, _, assigns := strings.Cut(a, "="); (assigns || strings.HasPrefix(a, "-")) && endsLikeKey(name) {
				return name + " of server." + words.field
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Policy.Chat.Extra)) {
		if endsLikeKey(name) {
			return "policy.chat.extra." + name
		}
	}
	if slices.ContainsFunc(cfg.Server.URLs, func(u string) bool { return strings.Contains(u, "@") }) {
		return "what stands before @ in server.urls"
	}
	return ""
}

func endsLikeKey(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc([]string{"TOKEN", "KEY", "SECRET", "PASSWORD"}, func(end string) bool { return strings.HasSuffix(name, end) })
}
