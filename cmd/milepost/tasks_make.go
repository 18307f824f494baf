package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/inject"
	"github.com/milepost-rl/milepost/benchmarks/micro"
)

func newTasksMakeCommand() *cobra.Command {
	c := &cobra.Command{Use: "make", Short: "Make a task set: micro (for a small model), or inject, mine or generate (from real packages)"}
	c.AddCommand(newTasksMakeMicroCommand(), newTasksMakeInjectCommand(), newTasksMakeMineCommand(), newTasksMakeGenerateCommand(), newTasksMakeEnvCommand())
	return c
}

// makeSet makes a set with use, once the configuration is found good, and says what came out.
func makeSet(c *cobra.Command, flags *benchFlags, out string, good func() error, use func(context.Context, *benchmarks.Checker) ([]*milepost.Task, error)) error {
	if out == "" {
		return &usageError{fmt.Errorf("--out is missing; it names the folder for the task set")}
	}
	if err := good(); err != nil {
		return err
	}
	var tasks []*milepost.Task
	err := flags.withChecker(func(check *benchmarks.Checker) (err error) {
		tasks, err = use(c.Context(), check)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: %d tasks, each run twice both ways\n", out, len(tasks))
	printStats(c.OutOrStdout(), benchmarks.Summarise(tasks))
	return nil
}

func newTasksMakeMicroCommand() *cobra.Command {
	var flags benchFlags
	var out, hint, kind string
	var families []string
	cfg := micro.DefaultConfig()
	c := &cobra.Command{
		Use:   "micro --out DIR",
		Short: "Make git repositories of short Python modules with unit tests and independent faults",
		Long: "The same seed gives the same set. The split is part of the seed and of what decides which repositories a set may\n" +
			"hold, so sets of different splits share neither.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if cfg.Count == 0 { // means the default in a configuration
				return &usageError{fmt.Errorf("--count is 0; it must be at least 1")}
			}
			cfg.Kind, cfg.Hint, cfg.Workers, cfg.Families = micro.Kind(kind), micro.Hint(hint), flags.workers, nil
			for _, f := range families {
				cfg.Families = append(cfg.Families, micro.Family(f))
			}
			return makeSet(c, &flags, out, cfg.Validate, func(ctx context.Context, check *benchmarks.Checker) ([]*milepost.Task, error) {
				return micro.Make(ctx, cfg, check, out, counter(c, "made"))
			})
		},
	}
	flags.register(c)
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the task set; must not hold one")
	f.Int64Var(&cfg.Seed, "seed", 1, "any number")
	f.IntVar(&cfg.Count, "count", cfg.Count, "how many tasks")
	f.StringVar(&cfg.Split, "split", cfg.Split, "train, validation or heldout")
	f.StringVar(&kind, "kind", string(cfg.Kind), "repair (faults and their tests) or generate (a specification, an empty repository and hidden tests)")
	f.IntVar(&cfg.Faults, "faults", cfg.Faults, "faults in a task")
	f.IntVar(&cfg.Files, "files", cfg.Files, "modules that may have faults, or are to be written")
	f.IntVar(&cfg.Distractors, "distractors", cfg.Distractors, "further modules, all healthy")
	f.IntVar(&cfg.FunctionsPerFile, "functions-per-file", cfg.FunctionsPerFile, "functions in each module, 1 to 4")
	f.StringSliceVar(&families, "families", nil, fmt.Sprintf("families of faults (default: all of %v)", micro.Families))
	f.StringVar(&hint, "hint", string(cfg.Hint), "what the statement names: module, or function alone (the agent has to search)")
	return c
}

func newTasksMakeInjectCommand() *cobra.Command {
	var flags benchFlags
	var out, hint, faults, place string
	var cfg inject.Config
	c := &cobra.Command{
		Use:   "inject --package NAME==VERSION|MODULE@vVERSION --out DIR",
		Short: "Put faults into a real package from PyPI or a Go module, kept where its own tests catch them",
		Long: "The source distribution is downloaded by pip (once: --cache), a module by the go command, with what it imports.\n" +
			"--python must have pytest and what the tests import. Sandboxes find Go in /usr or by sandbox.read_only, and compile\n" +
			"quickly where they see --go-cache too.\n" +
			"A small package with a fast suite is best, for example\n\n" +
			"  milepost tasks make inject --package toolz==1.0.0 --out tasks/toolz \\\n" +
			"    --tests toolz/tests/test_itertoolz.py,toolz/tests/test_dicttoolz.py,toolz/tests/test_functoolz.py,toolz/tests/test_recipes.py",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			cfg.Hint, cfg.Workers, cfg.Place = inject.Hint(hint), flags.workers, inject.Place(place)
			if cfg.Faults, cfg.Shares, err = parseFaults(faults); err != nil {
				return &usageError{err}
			}
			if cfg.Cache, err = sdistCache(cfg.Cache); err != nil {
				return err
			}
			if cfg.Golang() {
				if cfg.GoCache, err = goCache(cfg.GoCache); err != nil {
					return err
				}
				flags.readOnly = []string{cfg.GoCache}
			}
			return makeSet(c, &flags, out, cfg.Validate, func(ctx context.Context, check *benchmarks.Checker) ([]*milepost.Task, error) {
				return inject.Make(ctx, cfg, check, out, counter(c, "made"))
			})
		},
	}
	flags.register(c)
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the task set; must not hold one")
	f.StringVar(&cfg.Package, "package", "", "NAME==VERSION on PyPI, or MODULE@vVERSION of a Go module")
	f.Int64Var(&cfg.Seed, "seed", 1, "any number")
	f.IntVar(&cfg.Count, "count", 10, "how many tasks")
	f.StringVar(&cfg.Split, "split", "", "train, validation or heldout, which share no faulty function; empty takes all")
	f.StringVar(&faults, "faults", "1", "faults in a task: a number, or shares of numbers such as 1=5,2=3,3=2")
	f.StringVar(&place, "place", string(inject.PlaceAny), "where several faults of a task lie: any, one_file or files (each in another)")
	f.StringSliceVar(&cfg.Families, "families", nil, fmt.Sprintf("families of faults (default: all of %v)", inject.Families))
	f.StringVar(&cfg.Go, "go", "go", "go program that fetches and compiles modules")
	f.StringVar(&cfg.GoCache, "go-cache", "", "folder of compiled Go packages that sandboxes see (default: below the user's cache folder)")
	f.StringSliceVar(&cfg.Sources, "sources", nil, "files to put faults into (default: every module that is no test)")
	f.StringSliceVar(&cfg.Tests, "tests", nil, "test files, or folders of Go packages, to run (default: all)")
	f.StringVar(&hint, "hint", string(inject.HintNone), "what the statement names besides failing tests: none, file, function or line")
	f.Float64Var(&cfg.MaxFail, "max-fail", .5, "largest share of the suite that a fault may break")
	f.DurationVar(&cfg.Timeout, "timeout", 0, "of one run of the tests (default: ten times the healthy run, at least 10 s)")
	f.StringVar(&cfg.Cache, "cache", "", "folder of downloaded distributions (default: below the user's cache folder)")
	return c
}

// parseFaults reads "2", or "1=5,2=3": how many tasks get how many faults.
func parseFaults(s string) (int, inject.Shares, error) {
	if n, err := strconv.Atoi(s); err == nil {
		return n, nil, nil
	}
	shares := inject.Shares{}
	for part := range strings.SplitSeq(s, ",") {
		name, share, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(strings.TrimSpace(name))
		v, err2 := strconv.ParseFloat(strings.TrimSpace(share), 64)
		if !ok || err != nil || err2 != nil {
			return 0, nil, fmt.Errorf("--faults is %q; allowed are a number, or shares such as 1=5,2=3", s)
		}
		shares[n] = v
	}
	return 1, shares, nil
}

// goCache is the folder of compiled Go packages, which sandboxes are shown, made where it is missing.
func goCache(dir string) (string, error) {
	dir, err := userCache(dir, "go-build", "--go-cache")
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	return dir, milepost.Wrap("tasks make inject", milepost.KindUnavailable, err)
}
