package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// Names within an evaluation's folder. Besides these it holds attempts/TASK/N (patch, log and report of an attempt),
// episodes/, predictions-*.jsonl and report-*.json (evaluate.Export), tasks/ of an imported data set, logs/ of a server,
// and work/ while it is at work.
const (
	evalConfigFile  = "config.yaml"   // the resolved configuration
	evalOptionsFile = "eval.json"     // evalOptions
	evalJournalFile = "journal.jsonl" // the only truth: evaluate.Journal
	evalTableFile   = "result.txt"    // evaluate.WriteTable
	evalWorkDir     = "work"          // sandboxes, base repositories, messenger; removed at the end
)

// evaluation is one `milepost eval` under way.
type evaluation struct {
	cfg     configs.Run
	o       evalOptions
	dir     string // absolute
	tasks   []*milepost.Task
	visible map[string]*milepost.Task // by task, for --select; nil where nothing is visible
	plan    []evaluate.Attempt
	journal *evaluate.Journal
	folder  *orchestrator.Folder
	release func() error
	made    bool // the folder is this call's
	p       *progress

	// Set by equip, where there is something to attempt.
	world    *world
	probes   *probing        // nil where every task is graded as its data set does
	own      *rollout.Runner // of tasks whose verdict is a probe
	foreign  *rollout.Runner // of tasks that are graded as their data set does
	meter    *evaluate.Meter
	executor *grade.Executor
}

// merge takes the flags that were not given from the folder that is resumed.
func (o *evalOptions) merge() error {
	const op = "eval: resume"
	path := filepath.Join(o.resume, evalOptionsFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return milepost.E(op, milepost.KindNotFound, "%s holds no evaluation: %s is not there", o.resume, evalOptionsFile)
	}
	var saved evalOptions
	if err == nil {
		err = json.Unmarshal(b, &saved)
	}
	if err != nil {
		return milepost.E(op, milepost.KindCorrupt, "%s: %w", path, err)
	}
	keep := func(given *string, was string) {
		if *given == "" {
			*given = was
		}
	}
	if o.Model == "" && o.Chat == "" && o.Script == "" {
		o.Model, o.Script = saved.Model, saved.Script
		keep(&o.Chat, saved.Chat)
	}
	if o.Chat != "" { // a given address serves the saved model
		keep(&o.ChatModel, saved.ChatModel)
	}
	keep(&o.Tasks, saved.Tasks)
	keep(&o.Select, saved.Select)
	if o.Samples == 0 {
		o.Samples = saved.Samples
	}
	if len(o.IDs) == 0 {
		o.IDs = saved.IDs
	}
	if o.Limit == 0 {
		o.Limit = saved.Limit
	}
	return nil
}

// openEval takes the folder and the tasks and begins a session in the journal.
func openEval(ctx context.Context, cfg configs.Run, o evalOptions, p *progress) (_ *evaluation, err error) {
	e := &evaluation{cfg: cfg, o: o, p: p}
	if err := e.takeFolder(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			begun := e.journal != nil
			if err = errors.Join(err, e.close()); e.made && !begun { // nothing to go on with
				err = errors.Join(err, os.RemoveAll(e.dir))
			}
		}
	}()
	e.p.line("the evaluation is in %s", e.dir)
	e.o.Samples = o.samples(cfg)
	if e.tasks, err = evalTasks(ctx, o, cfg.Tasks.Certificates, e.dir, p); err != nil {
		return nil, err
	}
	if err := checkImages(cfg, e.tasks); err != nil {
		return nil, err
	}
	for _, t := range e.tasks {
		if err := grade.Gradable(t); err != nil { // before attempts are paid for
			return nil, err
		}
	}
	start, err := e.start()
	if err != nil {
		return nil, err
	}
	if e.journal, err = evaluate.OpenJournal(filepath.Join(e.dir, evalJournalFile), time.Now); err != nil {
		return nil, err
	}
	if torn := e.journal.Torn(); torn > 0 {
		e.p.line("the journal ended in the middle of a line, of a process that was killed: %d bytes cut off", torn)
	}
	if o.resume == "" && e.journal.History().Sessions > 0 {
		return nil, milepost.E("eval", milepost.KindConflict, "%s holds an evaluation; go on with it by --resume, or give another --out", e.dir)
	}
	if err := e.journal.Start(start); err != nil {
		return nil, err
	}
	if err := e.save(); err != nil {
		return nil, err
	}
	e.plan = evaluate.Plan(e.tasks, e.o.Samples, cfg.Run.Seed)
	if e.o.Select != "" {
		e.visible = map[string]*milepost.Task{}
		for _, t := range e.tasks {
			e.visible[t.ID] = evaluate.VisibleTask(t)
		}
	}
	return e, endOrphans(ctx, cfg.Run.Dir, e.dir, p)
}

// takeFolder makes or finds the folder and locks it. A new one's name has the time and something random: two that begin
// in the same second have two folders.
func (e *evaluation) takeFolder() (err error) {
	e.dir = absolute(e.o.resume)
	switch {
	case e.o.out != "":
		e.dir = absolute(e.o.out)
		if _, err := os.Stat(filepath.Join(e.dir, benchmarks.TasksFile)); err == nil {
			return milepost.E("eval", milepost.KindInvalid, "--out %s holds a task set; allowed: a folder of its own", e.o.out)
		}
	case e.o.resume == "":
		e.dir = filepath.Join(e.cfg.Run.Dir, "eval-"+time.Now().UTC().Format("20060102T150405")+"-"+rand.Text()[:6])
	}
	_, err = os.Stat(e.dir)
	e.made = errors.Is(err, fs.ErrNotExist)
	if e.release, err = orchestrator.Lock(e.dir); err != nil {
		return err
	}
	e.folder = &orchestrator.Folder{Dir: e.dir}
	return milepost.Wrap("eval", milepost.KindUnavailable, os.MkdirAll(e.folder.Path("episodes"), 0o755))
}

// start states what is evaluated.
func (e *evaluation) start() (s evaluate.Start, err error) {
	id := evaluate.Identity{Seed: e.cfg.Run.Seed, Select: e.o.Select, Milepost: programVersion(), Sampling: evaluate.SamplingOf(e.cfg.Rollout),
		Dataset: evaluate.Dataset{Source: e.o.Tasks, Tasks: len(e.tasks)}}
	id.Model, id.Endpoint = policyName(e.cfg, e.o)
	if id.Dataset.Fingerprint, _, err = evaluate.Fingerprint(e.tasks); err != nil {
		return s, err
	}
	chat := e.o.chat(e.cfg)
	id.Scaffold, err = evaluate.ScaffoldOf(e.cfg.Rollout, chat.BaseURL != "" && chat.NativeTools && e.cfg.Rollout.ToolFormat != toolcall.BashBlock, string(e.cfg.Sandbox.Driver))
	return evaluate.Start{Identity: id, Attempts: e.o.Samples}, err
}

// save keeps what a resumed evaluation needs.
func (e *evaluation) save() error {
	text, err := e.cfg.Marshal()
	if err != nil {
		return err
	}
	if err := e.folder.SaveConfig(text); err != nil {
		return err
	}
	o := e.o
	if isTaskSet(o.Tasks) || filepath.IsLocal(o.Tasks) {
		o.Tasks = absolute(o.Tasks)
	}
	return e.write(evalOptionsFile, o)
}

func (e *evaluation) write(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = orchestrator.WriteWhole(e.folder.Path(name), append(b, '\n'))
	}
	return milepost.Wrap("eval: write "+name, milepost.KindUnavailable, err)
}

// attempt makes what the journal lacks.
func (e *evaluation) attempt(ctx context.Context) (err error) {
	if len(e.journal.History().Records) == len(e.plan) {
		return nil
	}
	ctx, release, err := e.equip(ctx)
	defer func() { err = errors.Join(err, release()) }()
	if err != nil {
		return err
	}
	began, before := time.Now(), len(e.journal.History().Records)
	r := evaluate.Runner{Journal: e.journal, Concurrency: e.cfg.Schedule.Concurrency, Retries: e.cfg.Schedule.MaxRetries, GiveUp: e.cfg.Eval.GiveUp, Try: e.try,
		Done: func(done, total int) { e.p.count("attempts", done-before, total-before, time.Since(began)) }}
	return r.Run(ctx, e.plan)
}

// equip opens what attempts need; release gives it all up, whatever of it was opened. The context ends with the server.
func (e *evaluation) equip(ctx context.Context) (_ context.Context, release func() error, err error) {
	var steps []func() error
	release = func() (err error) {
		for _, step := range slices.Backward(steps) {
			err = errors.Join(err, step())
		}
		return err
	}
	work := e.folder.Path(evalWorkDir)
	if e.world, err = openWorld(e.cfg, work); err != nil {
		return ctx, release, err
	}
	steps = append(steps, e.world.close)
	isOwn := func(t *milepost.Task) bool { return t.Grading == nil }
	if slices.ContainsFunc(e.tasks, isOwn) {
		if e.probes, err = openProbing(ctx, e.cfg, e.world, work, filepath.Base(e.dir)+"-"+rand.Text()[:10], 1, e.tasks,
			func(err error) { e.p.line("warning: %v", err) }); err != nil {
			return ctx, release, err
		}
		steps = append(steps, e.probes.close)
	}
	model, server, err := evalModel(ctx, e.cfg, e.o, e.dir, e.p)
	if err != nil {
		return ctx, release, err
	}
	if server != nil {
		steps = append(steps, server.close)
		guarded, free := server.guard(ctx)
		ctx = guarded
		steps = append(steps, func() error { free(); return nil })
	}
	e.meter = evaluate.NewMeter(model)
	e.executor = &grade.Executor{Env: e.world.env, Bases: e.world.bases, Limits: e.cfg.Tests.Limits, Timeout: e.cfg.Eval.Timeout}
	return ctx, release, e.runners()
}

// runners makes the agent loops. No step is probed in an evaluation.
func (e *evaluation) runners() (err error) {
	cfg := e.cfg.Rollout
	cfg.ProbeSteps, cfg.ToolWait = false, 0
	deps := rollout.Deps{Env: e.world.env, Bases: e.world.bases, Blobs: e.world.blobs, Model: e.meter}
	if e.foreign, err = rollout.New(cfg, deps); err != nil || e.probes == nil {
		return err
	}
	deps.Prober = e.probes.Prober
	e.own, err = rollout.New(cfg, deps)
	return err
}

// result computes and writes what the journal tells.
func (e *evaluation) result() (*evaluate.Result, error) {
	h, err := evaluate.ReadJournal(e.folder.Path(evalJournalFile))
	if err != nil {
		return nil, err
	}
	r, err := evaluate.Compute(e.tasks, h, e.cfg.Eval.Prices)
	if err != nil {
		return nil, err
	}
	if r.Graded == 0 {
		loss := evaluate.Loss{}
		if len(r.Losses) > 0 {
			loss = r.Losses[0]
		}
		return nil, milepost.E("eval", milepost.KindUnavailable, "no attempt was graded: all %d were lost to infrastructure, %s first to %s: %s", r.Infra, loss.ID, loss.Kind, loss.Reason)
	}
	if _, err := evaluate.Export(e.dir, e.tasks, h, r, r.Identity.Model, func(rec evaluate.Record) (string, error) { return evaluate.ReadPatch(e.dir, rec) }); err != nil {
		return nil, err
	}
	if err := e.write(evaluate.ResultFile, r); err != nil {
		return nil, err
	}
	var table bytes.Buffer
	if err := evaluate.WriteTable(&table, r, nil); err != nil {
		return nil, err
	}
	if r.Infra > 0 {
		e.p.line("%d attempts were lost to infrastructure; make them good with: milepost eval --resume %s", r.Infra, e.dir)
	}
	return r, milepost.Wrap("eval: write "+evalTableFile, milepost.KindUnavailable, orchestrator.WriteWhole(e.folder.Path(evalTableFile), table.Bytes()))
}

// close ends the session. What attempts worked in is removed now, after the result was written: there may be much of it.
func (e *evaluation) close() (err error) {
	if e.journal != nil {
		err = errors.Join(e.journal.Close(), os.RemoveAll(e.folder.Path(evalWorkDir)))
	}
	return errors.Join(milepost.Wrap("eval: close", milepost.KindUnavailable, err), e.release())
}

// programVersion is the version of this program as its build tells it: the module's, with the commit.
func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version, commit, dirty := info.Main.Version, "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = " " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " with changes"
		}
	}
	if version == "" {
		version = "(devel)"
	}
	return version + commit + dirty
}
