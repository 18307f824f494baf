package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/orchestrator"
)

func newE2EImagesCommand() *cobra.Command {
	var file string
	packages := 3
	c := &cobra.Command{
		Use:   "images SET REFERENCE_DIR IDLE_DIR",
		Short: "Tasks of real packages in images of SWE-bench's layout, and evaluations of them by scripts",
		Args:  cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			found, err := readImages(args[0], args[1], args[2])
			if err != nil {
				return err
			}
			return found.judge(&requirements{part: "images", out: c.OutOrStdout(), file: file}, packages)
		},
	}
	c.Flags().StringVar(&file, "json", "", "file for the requirements as JSON")
	c.Flags().IntVar(&packages, "packages", packages, "least number of packages")
	return c
}

// imageMakers are the makers of tasks, as the first word of Task.Source names them.
var imageMakers = []string{"inject", "mine", "generate"}

// imagesFound is what the part with images shows.
type imagesFound struct {
	tasks     int
	images    map[string]int // tasks by image
	places    map[string]int // and by the place of their repository
	makers    map[string]int // and by what made them
	prepared  int            // with a base and an image that is pinned by digest
	certified int            // with a certificate of this task, image and at least two runs a side, by validate, that names no problem
	flaky     int
	why       string // of the first task that is not certified

	reference, idle evaluate.Result
	verdicts        int // of both evaluations
	shadow          int // those among them that a shadow worker found on a proven tree
}

func readImages(set, reference, idle string) (*imagesFound, error) {
	f := &imagesFound{images: map[string]int{}, places: map[string]int{}, makers: map[string]int{}}
	tasks, err := benchmarks.Load(set)
	if err != nil {
		return nil, err
	}
	certs, err := benchmarks.LoadCertificates(set)
	if err != nil {
		return nil, err
	}
	f.tasks = len(tasks)
	for _, t := range tasks {
		if err := f.task(t, certs[t.ID]); err != nil {
			return nil, err
		}
	}
	for dir, into := range map[string]*evaluate.Result{reference: &f.reference, idle: &f.idle} {
		if err := readScript(filepath.Join(dir, "result.json"), into); err != nil {
			return nil, err
		}
		if err := f.readVerdicts(&orchestrator.Folder{Dir: dir}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// task counts a task and what its certificate says.
func (f *imagesFound) task(t *milepost.Task, c *benchmarks.Certificate) error {
	f.images[t.Image]++
	f.places[t.Workdir]++
	maker, _, _ := strings.Cut(t.Source, " ")
	f.makers[maker]++
	f.prepared += count(t.Workdir != "" && t.Prepared() && strings.HasPrefix(t.Image, "sha256:"))
	why := "no certificate"
	if c != nil {
		stale, err := c.Stale(t)
		if err != nil {
			return err
		}
		switch {
		case stale != "":
			why = stale
		case c.By != "validate" || c.Digest == "" || !c.Covers(2):
			why = fmt.Sprintf("%d runs by %s on image %q", c.Runs, c.By, c.Digest)
		case !c.OK(false):
			why = c.Reason()
		default:
			f.certified++
			f.flaky += len(c.Flaky)
			return nil
		}
	}
	if f.why == "" {
		f.why = fmt.Sprintf(" (%s: %s)", t.ID, why)
	}
	return nil
}

// readVerdicts looks at who found the verdicts of an evaluation.
func (f *imagesFound) readVerdicts(folder *orchestrator.Folder) error {
	return eachEpisode(folder, func(_ string, rec orchestrator.EpisodeRecord) {
		f.verdicts++
		v := rec.Episode.Outcome.Verdict
		f.shadow += count(v != nil && v.Trusted && v.Worker != "" && v.Tree != "")
	})
}

func (f *imagesFound) judge(r *requirements, packages int) error {
	r.check(len(f.images) >= packages && f.places["/testbed"] == f.tasks, "%d tasks in %d images, of %d packages wanted; %d lie at /testbed (wanted: all)",
		f.tasks, len(f.images), packages, f.places["/testbed"])
	for _, maker := range imageMakers {
		r.check(f.makers[maker] > 0, "%d tasks by %s (wanted: 1 or more)", f.makers[maker], maker)
	}
	r.check(f.prepared == f.tasks, "%d of %d are prepared, their images pinned by digest", f.prepared, f.tasks)
	r.check(f.certified == f.tasks, "%d of %d have a certificate of two or more runs a side in their image%s; %d flaky tests", f.certified, f.tasks, f.why, f.flaky)
	r.scripts(f.reference, f.idle, f.tasks)
	r.check(f.verdicts == 2*f.tasks && f.shadow == f.verdicts, "%d of %d verdicts are by shadow workers, on proven trees (wanted: all of %d)", f.shadow, f.verdicts, 2*f.tasks)
	return r.end()
}
