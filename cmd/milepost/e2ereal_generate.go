package main

import (
	"os"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

func newE2EGenerateCommand() *cobra.Command {
	var file string
	updates := 1
	c := &cobra.Command{
		Use:   "generate RUN_DIR",
		Short: "A repository-generation run on micro tasks",
		Args:  oneRunDir("e2e-real-check generate"),
		RunE: func(c *cobra.Command, args []string) error {
			found, err := readGenerate(args[0])
			if err != nil {
				return err
			}
			return found.judge(&requirements{part: "generate", out: c.OutOrStdout(), file: file}, updates)
		},
	}
	c.Flags().StringVar(&file, "json", "", "file for the requirements as JSON")
	c.Flags().IntVar(&updates, "updates", updates, "least number of updates")
	return c
}

// generateFound is what a repository-generation run shows.
type generateFound struct {
	e2eFound
	generation    int // tasks of the kind, among the run's
	mode          string
	slots         int
	merged        int     // probes that stand for several steps
	firstR, lastR float64 // share of hidden tests passed by the training episodes of the first and the last update
}

func readGenerate(dir string) (*generateFound, error) {
	f := &generateFound{}
	folder := &orchestrator.Folder{Dir: dir}
	tasks, err := folder.Tasks()
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		f.tasks++
		f.generation += count(t.Kind == milepost.RepoGeneration)
	}
	cfg, err := loadRun(configFlags{file: folder.Path("config.yaml")}, "")
	if err != nil {
		return nil, err
	}
	f.mode, f.slots = string(cfg.Credit.Milestone.Mode), cfg.Probes.Worker.Slots
	if err := f.readMetrics(folder); err != nil {
		return nil, err
	}
	if err := f.readEpisodes(folder); err != nil {
		return nil, err
	}
	if err := f.readProbes(folder); err != nil {
		return nil, err
	}
	info, err := os.Stat(folder.Path("report.html"))
	f.report = err == nil && info.Size() > 0
	return f, nil
}

// readProbes counts merged probes and takes the pass rates of the first and the last update.
func (f *generateFound) readProbes(folder *orchestrator.Folder) error {
	metrics, err := folder.Metrics()
	if err != nil {
		return err
	}
	for u, m := range metrics {
		if u == 1 {
			f.firstR = metric(m, "pass_rate")
		}
		if u > 0 {
			f.lastR = metric(m, "pass_rate")
		}
	}
	return eachEpisode(folder, func(_ string, rec orchestrator.EpisodeRecord) {
		for _, s := range rec.Episode.Steps {
			f.merged += count(rec.Purpose == orchestrator.PurposeTrain && s.Probe != nil && s.Probe.Merge != nil && s.Probe.Merge.Index == 0)
		}
	})
}

// judge does not ask for learning, which so few updates do not promise.
func (f *generateFound) judge(r *requirements, updates int) error {
	r.check(f.tasks > 0 && f.generation == f.tasks, "%d of %d tasks ask for a repository", f.generation, f.tasks)
	r.check(f.mode == "pass_count" && f.slots == 4, "potential %s with %d shadow workers (wanted: pass_count, 4)", f.mode, f.slots)
	f.judgeUpdates(r, updates)
	r.check(f.edited > 0, "%d of %d episodes wrote files, %d passed every hidden test; %d of %d calls well formed", f.edited, f.episodes, f.resolved, f.valid, f.steps)
	r.check(f.probes > 0 && f.trusted == f.probes, "%d of %d steps have a trusted probe (wanted: all)", f.trusted, f.probes)
	r.check(f.merged > 0, "%d probes stand for several steps each (wanted: some)", f.merged)
	r.check(f.groups > 0 && 2*f.verR >= f.groups, "%d of %d groups have advantage from verification (wanted: half)", f.verR, f.groups)
	r.check(f.firstR >= 0 && f.lastR > 0, "training episodes pass %.2f of the hidden tests in the first update, %.2f in the last (wanted: some)", f.firstR, f.lastR)
	r.check(f.report, "report.html written")
	return r.end()
}
