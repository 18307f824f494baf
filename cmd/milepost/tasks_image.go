package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

func newTasksImageCommand() *cobra.Command {
	var out, image, workdir string
	var src pypkg.Source
	c := &cobra.Command{
		Use:   "image SET --package NAME==VERSION --image IMAGE --out DIR",
		Short: "Move the tasks of inject, mine or generate into an image that holds the release they were made from",
		Long: "The image has the files of the release's source distribution at --workdir, beside whatever else (build/testbed-image\n" +
			"makes such ones in SWE-bench's layout). What leads from there to a task's base becomes its preparation, so the tasks are\n" +
			"those that were made, in another environment: tasks prepare takes their bases out, tasks validate proves them there.",
		Args: oneSet,
		RunE: func(c *cobra.Command, args []string) (err error) {
			switch {
			case out == "":
				return &usageError{fmt.Errorf("--out is missing; it names the folder for the task set")}
			case image == "":
				return &usageError{fmt.Errorf("--image is missing; it names the image")}
			case src.Archive == "" && !pypkg.Pinned(src.Package):
				return &usageError{fmt.Errorf("--package is %q; NAME==VERSION is wanted, the release that the image holds", src.Package)}
			}
			if src.Cache, err = sdistCache(src.Cache); err != nil {
				return err
			}
			n, err := intoImage(c, src, args[0], out, image, workdir)
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "%s: %d tasks in %s; next: milepost tasks prepare %s\n", out, n, image, out)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the task set; must not hold one")
	f.StringVar(&src.Package, "package", "", "NAME==VERSION on PyPI, the release in the image (of mine the older one)")
	f.StringVar(&src.Archive, "archive", "", ".tar.gz of its source distribution, in place of a download")
	f.StringVar(&image, "image", "", "the image, as engines know it")
	f.StringVar(&workdir, "workdir", "/testbed", "where the release's files lie in it")
	f.StringVar(&src.Python, "python", "python3", "interpreter with pip, for the download")
	f.StringVar(&src.Cache, "cache", "", "folder of downloaded distributions (default: below the user's cache folder)")
	return c
}

// intoImage writes the tasks of a set, moved into the image, as a set in out and returns their number.
func intoImage(c *cobra.Command, src pypkg.Source, set, out, image, workdir string) (int, error) {
	const op = "tasks image"
	if _, err := benchmarks.Vacant(op, out); err != nil {
		return 0, err
	}
	tasks, err := benchmarks.Load(set)
	if err != nil {
		return 0, err
	}
	release, err := pypkg.Fetch(c.Context(), src)
	if err != nil {
		return 0, err
	}
	for i, t := range tasks {
		if tasks[i], err = pypkg.InImage(t, release, image, workdir); err != nil {
			return 0, err
		}
	}
	return len(tasks), benchmarks.Save(out, tasks)
}
