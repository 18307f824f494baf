package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/generate"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

func newTasksMakeGenerateCommand() *cobra.Command {
	var flags benchFlags
	var out string
	var cfg generate.Config
	c := &cobra.Command{
		Use:   "generate --package NAME==VERSION --out DIR",
		Short: "Ask for a real package anew: a specification, an emptied work tree, its own suite hidden",
		Long: "The specification holds documentation, signatures and docstrings, never a body. What counts is the share of the\n" +
			"package's own tests that pass. --python must have pytest and what the package imports, but not the package:\n\n" +
			"  milepost tasks make env --package inflection==0.5.1 --out envs/inflection\n" +
			"  milepost tasks make generate --package inflection==0.5.1 --python envs/inflection/bin/python --out tasks/inflection",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if cfg.Cache, err = sdistCache(cfg.Cache); err != nil {
				return err
			}
			return makeSet(c, &flags, out, cfg.Validate, func(ctx context.Context, check *benchmarks.Checker) ([]*milepost.Task, error) {
				return generate.Make(ctx, cfg, check, out)
			})
		},
	}
	flags.register(c)
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the task set; must not hold one")
	f.StringVar(&cfg.Package, "package", "", "NAME==VERSION on PyPI")
	f.StringVar(&cfg.Archive, "archive", "", ".tar.gz of a source distribution, in place of a download; --package names it")
	f.StringVar(&cfg.Split, "split", "", "train, validation or heldout")
	f.StringSliceVar(&cfg.Sources, "sources", nil, "modules to be written (default: every module of the package that is no test)")
	f.StringSliceVar(&cfg.Tests, "tests", nil, "test files that judge (default: all that pytest finds)")
	f.StringSliceVar(&cfg.Docs, "docs", nil, "documents that the specification quotes (default: README and docs/)")
	f.IntVar(&cfg.MaxDocs, "max-docs", 60000, "bytes of documentation")
	f.IntVar(&cfg.MinTests, "min-tests", 5, "fewer counted tests make no task")
	f.IntVar(&cfg.Runs, "runs", 3, "how often each side is run")
	f.DurationVar(&cfg.Timeout, "timeout", 0, "of one run of the tests (default: ten times a good run, at least 10 s)")
	f.StringVar(&cfg.Image, "image", "local:python3", "environment identity written into the task")
	f.StringVar(&cfg.Cache, "cache", "", "folder of downloaded distributions (default: below the user's cache folder)")
	return c
}

func newTasksMakeEnvCommand() *cobra.Command {
	var out string
	env := pypkg.Env{Python: "python3"}
	c := &cobra.Command{
		Use:   "env --package NAME==VERSION --out DIR",
		Short: "Make a virtual environment with pytest and what a package needs, without the package",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if out == "" {
				return &usageError{fmt.Errorf("--out is missing; it names the folder for the environment")}
			}
			python, err := pypkg.MakeEnv(c.Context(), env, out)
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), python)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the environment; must not exist")
	f.StringVar(&env.Package, "package", "", "NAME==VERSION on PyPI, whose dependencies are installed")
	f.StringSliceVar(&env.Requires, "requires", nil, "what its tests need besides, as pip takes it")
	f.StringVar(&env.Python, "python", env.Python, "interpreter to make it with")
	return c
}

// sdistCache is the folder of downloaded distributions: the one that was named, or one below the user's cache folder.
func sdistCache(named string) (string, error) { return userCache(named, "sdists", "--cache") }
