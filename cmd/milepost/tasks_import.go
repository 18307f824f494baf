package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost/benchmarks/dataset"
)

func newTasksImportCommand() *cobra.Command {
	var opts dataset.Options
	var cache string
	var asJSON bool
	c := &cobra.Command{
		Use:   "import FILE|DIR|hf://OWNER/NAME[@REVISION] --out DIR",
		Short: "Import a public data set: SWE-bench and its kin, R2E-Gym, NL2Repo-Bench, BeyondSWE, Harbor folders and more",
		Long: "The form is recognised by the columns of each file's first row; files are Parquet, JSON lines or JSON arrays. Every row\n" +
			"is kept beside its task, in rows.jsonl, with all its columns. A hub's address and token come from HF_ENDPOINT and\n" +
			"HF_TOKEN; what was downloaded is kept and continued.\n\nForms:\n" + formatList(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{fmt.Errorf("%d arguments; one file, folder or hf:// address is wanted", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			opts.From = args[0]
			if err := checkImport(opts); err != nil {
				return err
			}
			hub, err := newHub(cache)
			if err != nil {
				return err
			}
			opts.Hub = hub
			opts.Progress = importProgress(c)
			sum, err := dataset.Import(c.Context(), opts)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), sum)
			}
			printImport(c.OutOrStdout(), opts.Out, sum)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&opts.Out, "out", "", "folder for the task set; must not hold one")
	f.StringVar(&opts.Format, "format", "", "form of the rows (default: recognised)")
	f.StringVar(&opts.Split, "split", "", "split of the data set, by its files' names; needed where there are several")
	f.IntVar(&opts.Limit, "limit", 0, "at most so many tasks; 0 = all")
	f.StringSliceVar(&opts.IDs, "ids", nil, "instances to take, by their ids")
	f.StringVar(&opts.Assets, "assets", "", "folder of files that rows name but do not hold: SWE-bench Pro's repository, BeyondSWE's archives (default: beside the data)")
	f.StringVar(&opts.ImagePrefix, "image-prefix", "", "registry to put before image names without one")
	f.BoolVar(&opts.SkipInvalid, "skip-invalid", false, "leave faulty rows out and list them, instead of ending at the first")
	f.StringVar(&cache, "cache", "", "folder of downloads (default: below the user's cache folder)")
	f.BoolVar(&asJSON, "json", false, "print what was imported as JSON")
	return c
}

func checkImport(opts dataset.Options) error {
	switch {
	case opts.Out == "":
		return &usageError{fmt.Errorf("--out is missing; it names the folder for the task set")}
	case opts.Limit < 0:
		return &usageError{fmt.Errorf("--limit is %d; it must be at least 0", opts.Limit)}
	}
	return nil
}

// formatList names the forms, one a line.
func formatList() string {
	var b strings.Builder
	for _, f := range dataset.Formats {
		fmt.Fprintf(&b, "  %-22s %s\n", f.Name, f.About)
	}
	return b.String()
}

// importProgress shows a count now and then; how many there will be is not known.
func importProgress(c *cobra.Command) func(int) {
	const every = 2 * time.Second
	began := time.Now()
	last := began
	return func(n int) {
		if now := time.Now(); now.Sub(last) >= every {
			last = now
			fmt.Fprintf(c.ErrOrStderr(), "imported %d tasks, %.0f/s\n", n, float64(n)/now.Sub(began).Seconds())
		}
	}
}

func printImport(out io.Writer, dir string, s dataset.Summary) {
	fmt.Fprintf(out, "%s: %d tasks", dir, s.Tasks)
	for _, f := range slices.Sorted(maps.Keys(s.Formats)) {
		fmt.Fprintf(out, ", %d of %s", s.Formats[f], f)
	}
	fmt.Fprintln(out)
	if s.Folded > 0 {
		fmt.Fprintf(out, "in %d tasks a test's name came twice and was folded into one\n", s.Folded)
	}
	if len(s.Left) > 0 {
		fmt.Fprintf(out, "columns in rows.jsonl alone: %s\n", strings.Join(slices.Sorted(maps.Keys(s.Left)), ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Missing)) {
		fmt.Fprintf(out, "not found: %d files %s that rows name; without them these tasks cannot be graded (--assets DIR)\n", s.Missing[name], name)
	}
	for _, fault := range s.Skipped {
		fmt.Fprintf(out, "left out: %s\n", fault)
	}
}
