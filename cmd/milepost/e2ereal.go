package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// newE2ERealCommand judges what the parts of build/e2e-real made; it is no part of a user's work and so hidden. The other
// parts are in e2ereal_images.go and e2ereal_generate.go.
func newE2ERealCommand() *cobra.Command {
	c := &cobra.Command{Use: "e2e-real-check", Short: "Judge a part of make e2e-real by its requirements", Hidden: true}
	c.AddCommand(newE2ETrainCommand(), newE2EImagesCommand(), newE2EGenerateCommand())
	return c
}

func newE2ETrainCommand() *cobra.Command {
	var in e2eInputs
	var file string
	c := &cobra.Command{
		Use:   "train RUN_DIR --tasks DIR --demos DIR --reference FILE --idle FILE",
		Short: "The language model on a real package",
		Args:  oneRunDir("e2e-real-check train"),
		RunE: func(c *cobra.Command, args []string) error {
			in.run = args[0]
			found, err := readE2E(in)
			if err != nil {
				return err
			}
			return found.judge(&requirements{part: "train", out: c.OutOrStdout(), file: file})
		},
	}
	c.Flags().StringVar(&file, "json", "", "file for the requirements as JSON")
	c.Flags().StringVar(&in.tasks, "tasks", "", "tasks that trained")
	c.Flags().StringVar(&in.demos, "demos", "", "tasks of the demonstrations")
	c.Flags().StringVar(&in.reference, "reference", "", "result of eval --script reference --json on the tasks")
	c.Flags().StringVar(&in.idle, "idle", "", "result of eval --script idle --json on the tasks")
	return c
}

type e2eInputs struct{ run, tasks, demos, reference, idle string }

// e2eFound is what the run shows.
type e2eFound struct {
	tasks, shared       int // tasks that trained; those among them whose repository is a demonstration's
	reference, idle     evaluate.Result
	updates             int     // with a push
	gap, canary         float64 // largest mean logprob gap of fresh samples and of canaries; NaN where one is missing
	bound, canaryBound  float64 // what they must stay below
	episodes, edited    int     // training episodes; those that changed a file
	resolved            int
	steps, valid        int
	probes, trusted     int
	groups, withR, verR int // groups; with |r| > 1e-9 in some step; with r from the verification term
	report              bool
}

func readE2E(in e2eInputs) (*e2eFound, error) {
	out := &e2eFound{}
	if err := out.readTasks(in); err != nil {
		return nil, err
	}
	for file, into := range map[string]*evaluate.Result{in.reference: &out.reference, in.idle: &out.idle} {
		if err := readScript(file, into); err != nil {
			return nil, err
		}
	}
	folder := &orchestrator.Folder{Dir: in.run}
	if err := out.readMetrics(folder); err != nil {
		return nil, err
	}
	info, err := os.Stat(folder.Path("report.html"))
	out.report = err == nil && info.Size() > 0
	return out, out.readEpisodes(folder)
}

// readScript reads the result of an evaluation.
func readScript(file string, into *evaluate.Result) error {
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return milepost.E("e2e-real-check", milepost.KindInvalid, "result %q: %w", file, err)
	}
	return nil
}

func (f *e2eFound) readTasks(in e2eInputs) error {
	train, err := benchmarks.Load(in.tasks)
	if err != nil {
		return err
	}
	demos, err := benchmarks.Load(in.demos)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, t := range demos {
		seen[t.BaseTree] = true
	}
	f.tasks = len(train)
	for _, t := range train {
		f.shared += count(seen[t.BaseTree])
	}
	return nil
}

// readMetrics takes the updates and the largest gap; update 0 is the push of the model that the run began with, where there was one.
func (f *e2eFound) readMetrics(folder *orchestrator.Folder) error {
	cfg, err := loadRun(configFlags{file: folder.Path("config.yaml")}, "")
	if err != nil {
		return err
	}
	f.bound = weights.Bounds[cfg.Server.DType]
	if f.canaryBound = cfg.Weights.Canary.Bound; f.canaryBound == 0 {
		f.canaryBound = f.bound
	}
	metrics, err := folder.Metrics()
	if err != nil {
		return err
	}
	for u, m := range metrics {
		if _, pushed := m["canary_gap_mean"]; u > 0 || pushed { // a server that was started on the first weights got no push of them
			f.canary = max(f.canary, metric(m, "canary_gap_mean"))
		}
		if u > 0 {
			f.gap = max(f.gap, metric(m, "logprob_gap_mean"))
			f.updates += count(m["push_version"] == float64(u) && m["canary_tokens"] > 0 && m["grad_norm"] > 0)
		}
	}
	return nil
}

// metric is NaN where the metric is missing, and so meets no bound.
func metric(m map[string]float64, name string) float64 {
	if v, ok := m[name]; ok {
		return v
	}
	return math.NaN()
}

func (f *e2eFound) readEpisodes(folder *orchestrator.Folder) error {
	groups, withR, verR := map[string]bool{}, map[string]bool{}, map[string]bool{}
	err := eachEpisode(folder, func(b string, rec orchestrator.EpisodeRecord) {
		if rec.Purpose != orchestrator.PurposeTrain || rec.Credit == nil {
			return
		}
		group := b + "/" + rec.Episode.Group
		groups[group] = true
		r, ver := f.count(rec)
		withR[group], verR[group] = withR[group] || r, verR[group] || ver
	})
	f.groups = len(groups)
	for g := range groups {
		f.withR += count(withR[g])
		f.verR += count(verR[g])
	}
	return err
}

// eachEpisode calls use with every recorded episode of a folder and the batch that it is of.
func eachEpisode(folder *orchestrator.Folder, use func(batch string, rec orchestrator.EpisodeRecord)) error {
	batches, err := folder.Batches()
	if err != nil {
		return err
	}
	for _, b := range batches {
		records, err := folder.ReadEpisodes(b)
		if err != nil {
			return err
		}
		for _, rec := range records {
			use(b, rec)
		}
	}
	return nil
}

// count adds one training episode and tells whether it earned r, and whether verification did.
func (f *e2eFound) count(rec orchestrator.EpisodeRecord) (r, ver bool) {
	edited, phi := false, 0.0
	for i, s := range rec.Episode.Steps {
		f.steps++
		f.valid += count(s.Valid)
		edited = edited || len(s.Changed) > 0
		if s.Probe != nil {
			f.probes++
			f.trusted += count(s.Probe.Trusted)
		}
		if i < len(rec.Credit.Steps) {
			c := rec.Credit.Steps[i]
			r = r || math.Abs(c.R) > 1e-9
			ver = ver || math.Abs(c.PhiVer-phi) > 1e-9
			phi = c.PhiVer
		}
	}
	f.episodes++
	f.edited += count(edited)
	f.resolved += count(rec.Episode.Outcome.Resolved)
	return r, ver
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// judge holds the run against every requirement.
func (f *e2eFound) judge(r *requirements) error {
	r.check(f.tasks > 0 && f.shared == 0, "%d training tasks, %d shared with the demonstrations", f.tasks, f.shared)
	r.scripts(f.reference, f.idle, f.tasks)
	f.judgeUpdates(r, 1)
	r.check(f.valid > 0, "%d of %d calls well formed", f.valid, f.steps)
	r.check(f.edited > 0, "%d of %d episodes edited files, %d resolved", f.edited, f.episodes, f.resolved)
	r.check(f.trusted > 0, "%d of %d probes trusted", f.trusted, f.probes)
	r.check(f.groups > 0 && 2*f.withR >= f.groups, "%d of %d groups have advantage from r (wanted: half), %d by verification", f.withR, f.groups, f.verR)
	r.check(f.report, "report.html written")
	return r.end()
}

// judgeUpdates holds the pushes of a run against what sampler and trainer must agree to.
func (f *e2eFound) judgeUpdates(r *requirements, wanted int) {
	r.check(f.updates >= wanted, "%d full updates, weights pushed and canary passed (wanted: %d or more)", f.updates, wanted)
	r.check(f.updates == 0 || f.gap < f.bound, "mean |logprob(vLLM) - logprob(trainer)| of fresh samples %.2g nats (wanted: below %g)", f.gap, f.bound)
	r.check(f.canary < f.canaryBound, "the same of the canaries %.2g nats (wanted: below %g)", f.canary, f.canaryBound)
}

// requirements are those of one part with what was found, told as they are checked.
type requirements struct {
	part string
	out  io.Writer
	file string // for the whole as JSON, "" = none

	checked []requirement
}

type requirement struct {
	OK    bool   `json:"ok"`
	Found string `json:"found"`
}

func (r *requirements) check(ok bool, format string, a ...any) {
	mark := "ok  "
	if !ok {
		mark = "MISS"
	}
	q := requirement{OK: ok, Found: fmt.Sprintf(format, a...)}
	r.checked = append(r.checked, q)
	fmt.Fprintf(r.out, "  %s  %s\n", mark, q.Found)
}

// scripts holds evaluations of n tasks by the scripts reference and idle against what they must say.
func (r *requirements) scripts(reference, idle evaluate.Result, n int) {
	r.check(reference.Graded >= n && len(reference.Tasks) == n && reference.Infra == 0 && reference.Rate == 1,
		"replaying the reference patches resolves %.0f %% of %d tasks (wanted: all)", 100*reference.Rate, len(reference.Tasks))
	r.check(idle.Graded >= n && len(idle.Tasks) == n && idle.Infra == 0 && idle.Rate == 0,
		"doing nothing resolves %.0f %% of %d tasks (wanted: none)", 100*idle.Rate, len(idle.Tasks))
}

// end writes the file and returns an error where a requirement is not met.
func (r *requirements) end() error {
	missed := 0
	for _, q := range r.checked {
		missed += count(!q.OK)
	}
	if r.file != "" {
		b, err := json.MarshalIndent(map[string]any{"part": r.part, "met": missed == 0, "requirements": r.checked}, "", "  ")
		if err == nil {
			err = orchestrator.WriteWhole(r.file, append(b, '\n'))
		}
		if err != nil {
			return milepost.Wrap("e2e-real", milepost.KindUnavailable, err)
		}
	}
	if missed > 0 {
		return milepost.E("e2e-real", milepost.KindConflict, "%s: %d requirements are not met", r.part, missed)
	}
	return nil
}
