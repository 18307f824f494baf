package inject

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/errgroup"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/certify"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// repoName is the one bare repository of a set: a branch without history for each task, so that no task holds another's
// files in its own history, and equal files are stored once.
const repoName = "repo.git"

// batchSize is how many mutants are tried before it is seen whether there are enough; it does not depend on the number of
// workers, so that a seed gives the same set with any.
const batchSize = 8

// runs is how often each task is run both ways before it is kept.
const runs = 2

// Make writes a set of tasks from a real package into outDir: tasks.jsonl and one bare repository. Every task is run
// twice both ways. Errors: KindInvalid for a configuration out of range, a suite without healthy tests, or too few
// faults that tests catch; KindConflict where outDir holds tasks already; KindUnavailable where the package cannot be
// downloaded; and what the checker reports.
func Make(ctx context.Context, cfg Config, check *benchmarks.Checker, outDir string, progress benchmarks.Progress) ([]*milepost.Task, error) {
	const op = "inject: make"
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if outDir, err = filepath.Abs(outDir); err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	for _, name := range []string{benchmarks.TasksFile, repoName} {
		if _, err := os.Stat(filepath.Join(outDir, name)); err == nil {
			return nil, milepost.E(op, milepost.KindConflict, "%s has a %s already", outDir, name)
		}
	}
	files, err := cfg.fetch(ctx)
	if err != nil {
		return nil, err
	}
	work, err := workDir(outDir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	h, err := measure(ctx, cfg, files, check, work)
	if err != nil {
		return nil, err
	}
	m := &maker{cfg: cfg, check: check, healthy: h, outDir: outDir, progress: progress,
		rng: rand.New(rand.NewPCG(uint64(cfg.Seed), 0x696e6a656374))}
	tasks, err := m.make(ctx, filepath.Join(work, repoName))
	if err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(work, repoName), filepath.Join(outDir, repoName)); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	for _, t := range tasks {
		t.Repo = filepath.Join(outDir, repoName)
	}
	return tasks, certify.Save(ctx, check, outDir, "inject", tasks)
}

// fetch returns the files of the package.
func (c Config) fetch(ctx context.Context) ([]benchmarks.File, error) {
	if c.Golang() {
		return fetchModule(ctx, c)
	}
	return pypkg.Fetch(ctx, pypkg.Source{Package: c.Package, Cache: c.Cache, Python: c.Python})
}

// maker is the state of one Make.
type maker struct {
	cfg      Config
	check    *benchmarks.Checker
	healthy  *healthy
	outDir   string
	progress benchmarks.Progress
	rng      *rand.Rand
	sizes    []int // faults of each task
}

// make tries mutants until there are enough that tests catch, and writes tasks of them.
func (m *maker) make(ctx context.Context, repoDir string) ([]*milepost.Task, error) {
	all, err := listMutants(ctx, m.cfg, m.healthy.sources)
	if err != nil {
		return nil, err
	}
	candidates := interleave(usable(all, m.cfg.Split, m.healthy.sources), m.rng)
	m.sizes = m.cfg.sizes(m.cfg.Count, m.rng)
	want := 0
	for _, n := range m.sizes {
		want += n
	}
	caught, tried, err := m.try(ctx, candidates, want)
	if err != nil {
		return nil, err
	}
	sets := m.combine(caught)
	if len(sets) < m.cfg.Count {
		return nil, milepost.E("inject: make", milepost.KindInvalid,
			"%s: the tests catch %d of %d faults tried, enough for %d tasks, not for %d of %d faults in all: ask for fewer tasks, or allow more sources, tests, families, places or tries",
			m.cfg.Package, len(caught), tried, len(sets), m.cfg.Count, want)
	}
	r, err := git.PlainInit(repoDir, true)
	if err != nil {
		return nil, milepost.Wrap("inject: make", milepost.KindUnavailable, err)
	}
	var tasks []*milepost.Task
	trees := map[string]bool{}
	for _, set := range sets {
		if len(tasks) == m.cfg.Count {
			break
		}
		t, reason, err := m.write(ctx, r, repoDir, len(tasks), set)
		if err != nil {
			return nil, err
		}
		if reason == "" && !trees[t.BaseTree] {
			trees[t.BaseTree] = true
			tasks = append(tasks, t)
			m.tell(want+len(tasks), want+m.cfg.Count)
		}
	}
	if len(tasks) < m.cfg.Count {
		return nil, milepost.E("inject: make", milepost.KindInvalid, "%s: only %d of %d tasks held in two runs", m.cfg.Package, len(tasks), m.cfg.Count)
	}
	return tasks, nil
}

func (m *maker) tell(done, total int) {
	if m.progress != nil {
		m.progress(done, total)
	}
}

// interleave puts mutants into a random order in which the families take turns, so that common ones do not crowd out
// the others.
func interleave(all []mutant, rng *rand.Rand) []mutant {
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	by := map[string][]mutant{}
	for _, x := range all {
		by[x.Family] = append(by[x.Family], x)
	}
	families := slices.Sorted(maps.Keys(by))
	var out []mutant
	for i := 0; len(out) < len(all); i++ {
		for _, f := range families {
			if i < len(by[f]) {
				out = append(out, by[f][i])
			}
		}
	}
	return out
}

// catch is a mutant that tests catch, the tests that do, and what the run printed.
type catch struct {
	mutant
	fails []string
	log   []byte
}

// try runs mutants in order, several at a time, until enough are caught. The result is in the order of candidates, so a
// seed gives the same set however many workers there are.
func (m *maker) try(ctx context.Context, candidates []mutant, want int) (caught []catch, tried int, err error) {
	candidates = candidates[:min(len(candidates), m.cfg.MaxTries)]
	want += max(2, want/4) // some to spare: not every one holds, nor every combination
	for len(caught) < want && tried < len(candidates) {
		batch := candidates[tried:min(tried+batchSize, len(candidates))]
		found := make([]catch, len(batch))
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(m.cfg.Workers)
		for i, x := range batch {
			g.Go(func() (err error) {
				found[i].mutant = x
				found[i].fails, found[i].log, err = m.failing(ctx, []mutant{x})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, tried, err
		}
		for _, c := range found {
			if len(c.fails) > 0 {
				caught = append(caught, c)
			}
		}
		tried += len(batch)
		m.tell(min(len(caught), want), want+m.cfg.Count)
	}
	return caught, tried, nil
}

// failing runs the suite with the mutants in place and returns the tests that fail, and the log. It is empty where the
// mutants are no good fault: nothing fails, too much does, or the run does not end by itself.
func (m *maker) failing(ctx context.Context, set []mutant) (fails []string, log []byte, err error) {
	base, err := m.check.Bases.Base(ctx, m.healthy.task)
	if err != nil {
		return nil, nil, err
	}
	var delta []milepost.TreeChange
	for p, text := range m.mutated(set) {
		hash, err := m.check.Blobs.Put([]byte(text))
		if err != nil {
			return nil, nil, err
		}
		delta = append(delta, milepost.TreeChange{Path: p, Mode: base.Index[p].Mode, Blob: hash})
	}
	slices.SortFunc(delta, func(a, b milepost.TreeChange) int { return strings.Compare(a.Path, b.Path) })
	out, err := m.check.Runner.Run(ctx, m.healthy.task, base.Index.Apply(delta).TreeID(), delta)
	if err != nil {
		return nil, nil, err
	}
	if m.cfg.Golang() && notBuilt(out.Log) {
		return nil, nil, nil
	}
	if out.Status != milepost.ProbeCompleted || len(out.Extra) > 0 || len(out.Report) != len(m.healthy.task.Tests) {
		return nil, nil, nil
	}
	for i, s := range out.Report {
		switch s {
		case milepost.Failed, milepost.Errored:
			fails = append(fails, m.healthy.task.Tests[i])
		case milepost.NotRun, milepost.Skipped:
			return nil, nil, nil // the suite is broken, not a test
		}
	}
	if float64(len(fails)) > m.cfg.MaxFail*float64(len(out.Report)) {
		return nil, nil, nil
	}
	return fails, out.Log, nil
}

// mutated are the files with the mutants in place, by path. Mutants of one file must not overlap.
func (m *maker) mutated(set []mutant) map[string]string {
	set = slices.Clone(set)
	slices.SortFunc(set, func(a, b mutant) int { return b.Start - a.Start }) // from the end, so positions stay true
	out := map[string]string{}
	for _, x := range set {
		text, ok := out[x.Path]
		if !ok {
			text = m.healthy.sources[x.Path]
		}
		out[x.Path] = x.apply(text)
	}
	return out
}

// overlaps reports whether x changes bytes that one of the set changes.
func overlaps(set []catch, x catch) bool {
	return slices.ContainsFunc(set, func(y catch) bool { return x.Path == y.Path && x.Start <= y.End && y.Start <= x.End })
}

// write makes the task of one set of mutants: its branch, patch and statement. The reason says why it is none.
func (m *maker) write(ctx context.Context, r *git.Repository, repoDir string, n int, set []catch) (*milepost.Task, string, error) {
	mutants := make([]mutant, len(set))
	for i, c := range set {
		mutants[i] = c.mutant
	}
	fails, log := set[0].fails, set[0].log
	if len(set) > 1 {
		var err error
		if fails, log, err = m.failing(ctx, mutants); err != nil || len(fails) == 0 {
			return nil, "together the faults break too much or too little", err
		}
	}
	id := m.taskID(n)
	t := *m.healthy.task
	t.ID, t.Repo, t.Source = id, repoDir, fmt.Sprintf("inject %s seed=%d index=%d", m.cfg.Package, m.cfg.Seed, n)
	faulty := m.mutated(mutants)
	files := slices.Clone(m.healthy.files)
	for i, f := range files {
		if text, ok := faulty[f.Path]; ok {
			files[i].Data = []byte(text)
			t.ReferencePatch += benchmarks.Diff(f.Path, text, string(f.Data))
			t.RelevantFiles = append(t.RelevantFiles, f.Path)
		}
	}
	slices.Sort(t.RelevantFiles)
	commit, err := benchmarks.CommitFiles(r, plumbing.NewBranchReferenceName(id), files)
	if err != nil {
		return nil, "", milepost.Wrap("inject: make", milepost.KindUnavailable, err)
	}
	t.BaseCommit = commit.String()
	if t.BaseTree, err = benchmarks.TreeID(files); err != nil {
		return nil, "", milepost.Wrap("inject: make", milepost.KindInternal, err)
	}
	t.Statement = statement(m.cfg, mutants, fails, log)
	t.Meta = m.meta(mutants)
	reason, err := m.check.Discover(ctx, &t, runs)
	return &t, reason, err
}

func (m *maker) taskID(n int) string {
	split := m.cfg.Split
	if split == "" {
		split = "all"
	}
	return fmt.Sprintf("inject-%s-%s-%d-%04d", slug(m.cfg.Package), split, m.cfg.Seed, n)
}

// slug makes a package's name and version part of a task's id.
func slug(pkg string) string {
	return strings.NewReplacer("==", "-", "@", "-", "/", "-", "!", "_").Replace(pkg)
}

// meta describes the faults for people, statistics and scripted experts.
func (m *maker) meta(set []mutant) map[string]string {
	var families, kinds, places []string
	for _, x := range set {
		families = append(families, x.Family)
		kinds = append(kinds, x.Kind)
		places = append(places, x.Path+":"+x.Function)
	}
	where, err := json.Marshal(places)
	if err != nil {
		panic(err) // a list of strings always marshals
	}
	return map[string]string{
		"package": m.cfg.Package, "seed": strconv.FormatInt(m.cfg.Seed, 10), "faults": strconv.Itoa(len(set)), "hint": string(m.cfg.Hint),
		benchmarks.MetaFamilies: strings.Join(families, ","), "kinds": strings.Join(kinds, ","), "functions": string(where),
	}
}
