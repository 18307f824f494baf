package orchestrator

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Dynamic sampling in the machine: groups that teach nothing are replaced, more groups than needed are dispatched at
// once and the surplus is cancelled, and tasks that keep teaching nothing retire (credit.Sampling has the rules and
// their sources).
//
// Invariants, held by TestSamplingInvariants: a group is judged once, after each of its episodes ended, unless it was
// cancelled before; an update is finalised once, after every dispatched episode ended and every judgement answered,
// with schedule.groups_per_update kept groups or a stated reason for fewer; what is cancelled stays cancelled, is not
// retried and never trains; a retired task is drawn no more, and no task twice for one update. All of it follows from
// the journaled events alone.

// Fate is what became of a sampled group.
type Fate string

// The fates. A group under way has none.
const (
	FateKept     Fate = "kept"     // it trains
	FateRejected Fate = "rejected" // without signal by the criterion, or lost to infrastructure
	FateSurplus  Fate = "surplus"  // enough groups were kept before it was judged, or the run ended: cancelled
	FateStale    Fate = "stale"    // mode async: it got older than max_staleness: cancelled
)

// Sampled says what dynamic sampling came to in one update.
type Sampled struct {
	Fates   map[string]Fate // of every group, by its id
	Rounds  int             // times that groups were dispatched
	Retired int             // tasks retired so far in the run
	Short   string          // why fewer than schedule.groups_per_update groups are kept, else ""
}

// count returns how many groups met a fate.
func (s *Sampled) count(f Fate) int {
	n := 0
	for _, got := range s.Fates {
		if got == f {
			n++
		}
	}
	return n
}

// group is one dispatched group of the current update.
type group struct {
	id, task string
	slots    []*slot
	fate     Fate // "" while episodes or its judgement are under way
}

// needed reports whether lost episodes of the group are worth a retry; without dynamic sampling (nil) they always are.
func (g *group) needed() bool { return g == nil || g.fate == "" }

func (g *group) ended() bool { return allEnded(g.slots) }

// sampling is the state of dynamic sampling within an update; in mode async its groups are those that no update has taken.
type sampling struct {
	groups []*group        // in the order of their dispatch
	used   map[string]bool // their tasks
	rounds int
	short  string
}

// draw is where the run stands in its training tasks: a permutation that is drawn anew each time the tasks are used up,
// so every task is seen once before any is seen twice. Tasks of different weights, and those of a curriculum, are drawn by
// shares instead (curriculum.go).
type draw struct {
	next       int   // tasks drawn or passed over so far
	perm       []int // of the current pass
	pass       int   // that perm belongs to
	rejections map[string]int
	retired    map[string]bool
	measured   map[string]measured // by task, where a curriculum wants it
	credit     []float64           // by training task, where they are drawn by shares; nil before the first draw
}

func newDraw() draw {
	return draw{pass: -1, rejections: map[string]int{}, retired: map[string]bool{}, measured: map[string]measured{}}
}

// nextTask draws a task that is neither retired nor used for this update already; there must be one.
func (m *Machine) nextTask() string {
	if m.weighted() {
		return m.nextWeighted()
	}
	for {
		d, n := &m.draw, len(m.tasks.Train)
		if pass := d.next / n; pass != d.pass {
			r := rand.New(rand.NewPCG(uint64(m.seedOf("tasks", pass)), 1))
			d.perm, d.pass = r.Perm(n), pass
		}
		task := m.tasks.Train[d.perm[d.next%n]]
		d.next++
		if !d.retired[task] && !m.sampling.used[task] {
			return task
		}
	}
}

// tasksLeft is the number of training tasks that are not retired.
func (m *Machine) tasksLeft() int { return len(m.tasks.Train) - len(m.draw.retired) }

// unused is the number of those that are not used for this update either.
func (m *Machine) unused() int {
	n := m.tasksLeft()
	for task := range m.sampling.used {
		if !m.draw.retired[task] {
			n--
		}
	}
	return n
}

func (m *Machine) noTasks() string {
	return fmt.Sprintf("no_tasks: all %d training tasks are retired, each too easy or too hard to learn from", len(m.tasks.Train))
}

// Retired returns how many training tasks are retired so far.
func (m *Machine) Retired() int { return len(m.draw.retired) }

// beginSampling dispatches the first groups of an update, the speculative ones included.
func (m *Machine) beginSampling() []Command {
	m.slots, m.sampling = m.slots[:0], sampling{used: map[string]bool{}}
	return m.sample(m.cfg.GroupsPerUpdate)
}

// sample dispatches groups for so many that are still needed, within max_groups and while there are further tasks. None
// is the end of sampling: the reason is noted.
func (m *Machine) sample(needed int) []Command {
	s := &m.sampling
	bound := m.cfg.Sampling.Bound(m.cfg.GroupsPerUpdate)
	n := min(m.cfg.Sampling.Dispatch(needed), bound-len(s.groups), m.unused())
	switch {
	case m.tasksLeft() == 0:
		s.short = m.noTasks()
	case m.unused() == 0:
		s.short = fmt.Sprintf("no_tasks: each of the %d training tasks that are not retired was sampled", m.tasksLeft())
	case n <= 0:
		s.short = fmt.Sprintf("max_groups: %d groups were sampled", len(s.groups))
	}
	if n <= 0 {
		return nil
	}
	s.rounds++
	var cs []Command
	for range n {
		task := m.nextTask()
		s.used[task] = true
		specs := m.groupSpecs(len(s.groups), task)
		g := &group{id: specs[0].Group, task: task}
		for _, spec := range specs {
			g.slots = append(g.slots, &slot{spec: spec, group: g})
			cs = append(cs, Command{Type: CommandEpisode, Episode: spec})
		}
		s.groups = append(s.groups, g)
		m.slots = append(m.slots, g.slots...)
	}
	return m.issue(cs...)
}

// groupEpisodeEnded has a group judged once its last episode ended; of a cancelled group nothing more is wanted.
func (m *Machine) groupEpisodeEnded(g *group) []Command {
	switch {
	case g.fate == FateSurplus:
		return m.closeSampling()
	case g.ended():
		return m.issue(Command{Type: CommandJudge, Group: g.id, Update: m.update, Episodes: specsOf(g.slots)})
	}
	return nil
}

// groupJudged takes the facts of one group. A group of which infrastructure left nothing to grade says nothing of its
// task, and neither does one that was cancelled before its judgement came.
func (m *Machine) groupJudged(e Event) []Command {
	for _, g := range m.sampling.groups {
		if g.id != e.Group || g.fate != "" {
			continue
		}
		m.measure(g.task, float64(e.Graded), e.Rate*float64(e.Graded))
		if e.Kept {
			g.fate = FateKept
			break
		}
		g.fate = FateRejected
		if d := &m.draw; e.Graded > 0 {
			d.rejections[g.task]++
			if m.cfg.Sampling.Retired(e.Rate, d.rejections[g.task]) {
				d.retired[g.task] = true
			}
		}
	}
	if m.cfg.Mode == ModeAsync {
		return m.goOn(e)
	}
	return m.goOnSampling()
}

// goOnSampling cancels what is under way once enough groups are kept, and dispatches more as soon as what is kept and
// under way cannot be enough.
func (m *Machine) goOnSampling() []Command {
	kept, open := 0, 0
	for _, g := range m.sampling.groups {
		switch g.fate {
		case FateKept:
			kept++
		case "":
			open++
		}
	}
	missing := m.cfg.GroupsPerUpdate - kept - open
	switch {
	case kept == m.cfg.GroupsPerUpdate:
		return append(m.cancelSurplus(), m.closeSampling()...)
	case missing > 0 && m.cfg.Sampling.Replace && m.sampling.short == "":
		if cs := m.sample(missing); cs != nil {
			return cs
		}
	}
	return m.closeSampling()
}

// cancelSurplus gives up the groups under way.
func (m *Machine) cancelSurplus() []Command {
	return m.giveUp(FateSurplus, func(g *group) bool { return g.fate == "" })
}

// giveUp lets groups meet a fate before their time: what is outstanding of them is marked and cancelled, and what was not
// dispatched will not be.
func (m *Machine) giveUp(fate Fate, which func(*group) bool) []Command {
	var keys []string
	cancel := func(key string) {
		if c, ok := m.outstanding[key]; ok {
			c.Cancelled = true
			m.outstanding[key] = c
			keys = append(keys, key)
		}
	}
	for _, g := range m.sampling.groups {
		if !which(g) {
			continue
		}
		g.fate = fate
		g.slots = slices.DeleteFunc(g.slots, func(s *slot) bool { return s.waiting })
		for _, s := range g.slots {
			cancel(Command{Type: CommandEpisode, Episode: s.spec}.Key())
		}
		cancel(judgeKey(g.id))
	}
	if len(keys) == 0 {
		return nil
	}
	return []Command{{Type: CommandCancel, Keys: keys}}
}

// closeSampling finalises the update once nothing of it is outstanding.
func (m *Machine) closeSampling() []Command {
	if len(m.outstanding) > 0 {
		return nil
	}
	s := &Sampled{Fates: map[string]Fate{}, Rounds: m.sampling.rounds, Retired: m.Retired(), Short: m.sampling.short}
	for _, g := range m.sampling.groups {
		s.Fates[g.id] = g.fate
	}
	if s.Short == "" && s.count(FateKept) < m.cfg.GroupsPerUpdate {
		s.Short = "sampling.replace is false"
	}
	m.phase = PhaseFinalising
	return m.issue(Command{Type: CommandFinalise, Update: m.update, Episodes: specsOf(m.slots), Sampling: s})
}

func specsOf(slots []*slot) []EpisodeSpec {
	out := make([]EpisodeSpec, len(slots))
	for i, s := range slots {
		out[i] = s.spec
	}
	return out
}
