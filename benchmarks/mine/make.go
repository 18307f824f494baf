package mine

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/certify"
)

// repoName is the one bare repository of a set: a branch without history for each task, so that none holds its own fix.
const repoName = "repo.git"

// Stats says what became of the candidates.
type Stats struct {
	Candidates int            `json:"candidates"`
	Tasks      int            `json:"tasks"`
	Reasons    map[string]int `json:"reasons"` // of those that are no task
}

// List are the reasons, the most frequent first.
func (s Stats) List() []string {
	return slices.SortedFunc(maps.Keys(s.Reasons), func(a, b string) int {
		if s.Reasons[a] != s.Reasons[b] {
			return s.Reasons[b] - s.Reasons[a]
		}
		if a < b {
			return -1
		}
		return 1
	})
}

// Make looks for tasks and writes them into outDir: tasks.jsonl, certificates, one bare repository, and mined.jsonl, which
// tells what became of every candidate. The same configuration gives the same set. An interrupted call goes on where it was
// when it is made again. progress hears of every candidate. Errors: KindInvalid for a configuration out of range, a
// repository that cannot be read or a set that comes to no task; KindConflict where outDir holds tasks already or a ledger of another
// configuration; and what the checker reports.
func Make(ctx context.Context, cfg Config, check *benchmarks.Checker, outDir string, progress func(Verdict)) (tasks []*milepost.Task, stats Stats, err error) {
	const op = "mine: make"
	stats.Reasons = map[string]int{}
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, stats, err
	}
	if outDir, err = benchmarks.Vacant(op, outDir); err != nil {
		return nil, stats, err
	}
	if err := os.MkdirAll(outDir, 0o755); err != nil {
		return nil, stats, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	m, err := open(ctx, cfg, check, outDir)
	if err != nil {
		return nil, stats, err
	}
	defer func() { err = errors.Join(err, m.books.file.Close(), os.RemoveAll(m.releases())) }()
	m.progress, m.stats = progress, &stats
	if cfg.Repo != "" {
		_, err = walk(ctx, cfg, m.use)
	} else {
		_, err = compare(ctx, cfg, m.releases(), m.use)
	}
	if err != nil {
		return nil, stats, err
	}
	if len(m.tasks) == 0 {
		return nil, stats, milepost.E(op, milepost.KindInvalid, "none of %d candidates is a task; %s says why", stats.Candidates, filepath.Join(outDir, LedgerFile))
	}
	return m.tasks, stats, certify.Save(ctx, check, outDir, "mine", m.tasks)
}

// miner is the state of one Make.
type miner struct {
	ctx      context.Context
	prover   *prover
	books    *ledger
	outDir   string
	progress func(Verdict)
	stats    *Stats
	tasks    []*milepost.Task
}

// open opens or makes the ledger and the set's repository.
func open(ctx context.Context, cfg Config, check *benchmarks.Checker, outDir string) (*miner, error) {
	m := &miner{ctx: ctx, outDir: outDir}
	p := &prover{cfg: cfg, check: check, repoDir: filepath.Join(outDir, repoName), from: repository{dir: m.releases()}}
	key := cfg
	if cfg.Repo != "" {
		dir, err := filepath.Abs(cfg.Repo)
		if err != nil {
			return nil, milepost.Wrap("mine: make", milepost.KindInvalid, err)
		}
		p.from = repository{dir: dir}
		head, err := p.from.git(ctx, "rev-parse", "--verify", cfg.Revision+"^{commit}")
		if err != nil {
			return nil, err
		}
		key.Revision = string(head) // a branch that has moved is another configuration
	}
	var err error
	if p.store, err = git.PlainOpen(p.repoDir); errors.Is(err, git.ErrRepositoryNotExists) {
		p.store, err = git.PlainInit(p.repoDir, true)
	}
	if err != nil {
		return nil, milepost.Wrap("mine: make", milepost.KindUnavailable, err)
	}
	m.prover = p
	m.books, err = openLedger(filepath.Join(outDir, LedgerFile), keyOf(key, ""))
	return m, err
}

// releases is where the two releases lie while they are compared.
func (m *miner) releases() string { return filepath.Join(m.outDir, ".releases.git") }

// use decides on one candidate, or takes over what was decided before, and says whether there are enough tasks.
func (m *miner) use(c *candidate, reason string) (stop bool, err error) {
	v, known := m.books.done[c.id]
	if !known {
		v = Verdict{Candidate: c.id, Source: c.source, Reason: reason}
		if reason == "" {
			if v.Task, v.Reason, v.Detail, err = m.prover.prove(m.ctx, c); err != nil {
				return true, err
			}
		}
		if v.Task != nil {
			own := *v.Task
			own.Repo = repoName // the set may be moved before the next start
			v.Task = &own
		}
		if err := m.books.add(v); err != nil {
			return true, err
		}
	}
	m.stats.Candidates++
	if v.Task != nil {
		t := *v.Task
		t.Repo = m.prover.repoDir
		if known { // the certificate is of runs of this call
			why, err := m.prover.check.Discover(m.ctx, &t, m.prover.cfg.Runs)
			if err != nil {
				return true, err
			}
			if why != "" {
				return true, milepost.E("mine: make", milepost.KindConflict, "candidate %s was a task and is none now: %s", c.id, why)
			}
		}
		m.tasks = append(m.tasks, &t)
		m.stats.Tasks++
	} else {
		m.stats.Reasons[v.Reason]++
	}
	if m.progress != nil {
		m.progress(v)
	}
	return m.prover.cfg.Count > 0 && len(m.tasks) == m.prover.cfg.Count, nil
}
