package orchestrator

import (
	"fmt"

	milepost "github.com/milepost-rl/milepost"
)

// Asynchronous runs in the machine: rollouts go on while an update is made, after AReaL (arXiv 2505.24298). Groups are
// started, judged, kept or rejected one by one as under dynamic sampling (sampling.go); as soon as enough of them lie
// ready and no update is under way, the oldest are finalised, trained on and pushed. Draw, retries, judging, retirement,
// evaluation, stop rules and the end of the run are the synchronous machine's; [Machine.roll] is where the two part.
//
// Staleness of a token is the version that its update starts from minus the version that sampled it.
//
// Invariants, held by TestAsyncInvariants:
//   - What is started and not yet trained is bounded: groups under way, ready and in the update under way are at most
//     (max_staleness + 1) * groups_per_update, as AReaL bounds it, groups that came to nothing not counted; episodes under way,
//     evaluation included, are at most schedule.concurrency, but that an evaluation is dispatched as a whole.
//   - One update is under way at a time, from finalise to pushed (or skipped), so versions are pushed in order, and the
//     version that an update starts from is the one served when it was finalised.
//   - Under cut no group that is under way or ready has a trained token older than max_staleness before the version
//     served; one that would is given up as a whole, for its episodes began together. Under mask that holds for the group's
//     newest token, once all its episodes ended, and the runner leaves older tokens out of the mask.
//   - Neither update step nor push is made while an evaluation is under way, so its episodes see one version, and trainer
//     and servers hold the same version but between an update step and its push. Rollouts and finalising go on.
//   - A group is taken by one update, or given up, or left over at the end of the run and stored then; it waits for no
//     event but those of its own commands and of the update under way.

// The modes of a run.
const (
	ModeSync  = "sync"
	ModeAsync = "async"
)

// What becomes of an episode that gets too old.
const (
	StaleCut  = "cut"
	StaleMask = "mask"
)

// Async is the part of the schedule that mode async reads.
type Async struct {
	// MaxStaleness bounds every trained token: versions between the weights that sampled it and those that its update
	// starts from. 0 trains on nothing but what the served weights sampled.
	MaxStaleness int `yaml:"max_staleness"`
	// OnStale says what becomes of what gets older: cut ends its group and starts another; mask lets it finish and leaves the
	// older tokens out of the loss.
	OnStale string `yaml:"on_stale"`
}

// DefaultAsync bounds staleness by 4 versions, AReaL's value, and cuts.
func DefaultAsync() Async { return Async{MaxStaleness: 4, OnStale: StaleCut} }

// Validate names the first field that is out of range and what is allowed.
func (a Async) Validate() error {
	const op = "orchestrator: schedule"
	if a.MaxStaleness < 0 {
		return milepost.E(op, milepost.KindInvalid, "schedule.async.max_staleness is %d; allowed: 0 or more", a.MaxStaleness)
	}
	if a.OnStale != StaleCut && a.OnStale != StaleMask {
		return milepost.E(op, milepost.KindInvalid, "schedule.async.on_stale is %q; allowed: cut, mask", a.OnStale)
	}
	return nil
}

// noVersion is the version of what sampled nothing.
const noVersion = -1

// async is where the training of an asynchronous run stands. Its groups are those of [sampling]: all that no update has
// taken, in the order of their start.
type async struct {
	started int    // groups started so far
	busy    bool   // an update is under way, from finalise to pushed or skipped
	taken   int    // groups that train in it
	held    *Event // its finalised event, where what follows waits for an evaluation
}

// evaluating reports whether an evaluation is under way.
func (m *Machine) evaluating() bool { return m.evalName != "" }

// goOn does all that the state allows after an event: what an evaluation held up, the end of the run, giving up what is
// too old, the next update, further episodes.
func (m *Machine) goOn(e Event) []Command {
	if m.phase == PhaseDraining {
		return m.drained()
	}
	m.phase = PhaseAsync
	var cs []Command
	if held := m.async.held; held != nil && !m.evaluating() {
		m.async.held = nil
		if held.Rows == 0 {
			return m.afterUpdate(e)
		}
		cs = m.learn(*held)
	}
	if !m.async.busy && !m.evaluating() {
		if reason := m.stopRule(e); reason != "" {
			return append(cs, m.drain(reason)...)
		}
	}
	cs = append(cs, m.giveUpStale()...)
	cs = append(cs, m.takeUpdate(e)...)
	return append(cs, m.startEpisodes(e)...)
}

// counts reports whether a judged group is one of an update's groups_per_update: one that trains and, where rejected
// groups are not replaced, one that was rejected.
func (m *Machine) counts(g *group) bool {
	return g.fate == FateKept || g.fate == FateRejected && !m.cfg.Sampling.Replace
}

// live counts the groups that no update has taken yet: under way, and ready for one.
func (m *Machine) live() (open, ready int) {
	for _, g := range m.sampling.groups {
		if g.fate == "" {
			open++
		} else if m.counts(g) {
			ready++
		}
	}
	return open, ready
}

// pending reports whether groups of an asynchronous run may still make an update though no task is left to draw.
func (m *Machine) pending() bool {
	if m.cfg.Mode != ModeAsync {
		return false
	}
	open, ready := m.live()
	return open+ready > 0
}

// asyncEpisodeEnded has a group judged once its last episode ended, unless it got too old.
func (m *Machine) asyncEpisodeEnded(g *group, e Event) []Command {
	cs := m.giveUpStale()
	if g.needed() && g.ended() {
		cs = append(cs, m.issue(Command{Type: CommandJudge, Group: g.id, Episodes: specsOf(g.slots)})...)
	}
	return append(cs, m.goOn(e)...)
}

// giveUpStale gives up the groups that can train in no later update: the next one starts from the version served or a
// later one.
func (m *Machine) giveUpStale() []Command {
	return m.giveUp(FateStale, func(g *group) bool { return g.wanted() && m.stale(g) })
}

// stale reports whether a group is too old. Of an episode under way only the version served at its dispatch is known,
// which none of its tokens is older than; so one may be cut whose first token is in truth younger, never one kept that is
// older. Retrying a cut episode alone would save nothing: those that began with it and ended are as old.
func (m *Machine) stale(g *group) bool {
	bound := m.version - int32(m.cfg.Async.MaxStaleness)
	newest := int32(noVersion)
	for _, s := range g.slots {
		if m.cfg.Async.OnStale == StaleMask && !s.ended {
			return false // it still samples under newer weights
		}
		if m.cfg.Async.OnStale == StaleCut && s.oldest != noVersion && s.oldest < bound {
			return true
		}
		newest = max(newest, s.newest)
	}
	return m.cfg.Async.OnStale == StaleMask && newest != noVersion && newest < bound
}

// wanted reports whether a group may still train.
func (g *group) wanted() bool { return g.fate == "" || g.fate == FateKept }

// settled reports whether nothing of a group is outstanding.
func (m *Machine) settled(g *group) bool {
	_, judging := m.outstanding[judgeKey(g.id)]
	return g.fate != "" && g.ended() && !judging
}

// takeUpdate finalises the next update where enough groups lie ready, the oldest first, or where waiting for more is
// over by a stated rule. With them go all groups that came to nothing since the last update, for the record.
func (m *Machine) takeUpdate(e Event) []Command {
	if m.async.busy || m.stopRule(e) != "" { // an evaluation may be under way, after which the run ends or goes on
		return nil
	}
	open, ready := m.live()
	tried := len(m.sampling.groups) - open
	short := ""
	switch {
	case ready >= m.cfg.GroupsPerUpdate:
	case tried >= m.cfg.Sampling.Bound(m.cfg.GroupsPerUpdate):
		short = fmt.Sprintf("max_groups: %d groups were sampled", tried)
	case m.tasksLeft() == 0 && open == 0 && ready > 0:
		short = m.noTasks()
	default:
		return nil
	}
	m.update++
	m.async.busy, m.async.taken = true, 0
	m.sampling.used = map[string]bool{}
	s := &Sampled{Fates: map[string]Fate{}, Retired: m.Retired(), Short: short}
	var specs []EpisodeSpec
	var rest []*group
	for _, g := range m.sampling.groups {
		trains := m.counts(g) && m.async.taken < m.cfg.GroupsPerUpdate
		if !trains && (m.counts(g) || !m.settled(g)) {
			rest = append(rest, g)
			continue
		}
		m.async.taken += int(indicator(trains))
		s.Fates[g.id] = g.fate
		specs = append(specs, specsOf(g.slots)...)
	}
	if s.Short == "" && s.count(FateKept) < m.cfg.GroupsPerUpdate {
		s.Short = "sampling.replace is false"
	}
	m.sampling.groups = rest
	return m.issue(Command{Type: CommandFinalise, Update: m.update, Episodes: specs, Sampling: s, Base: m.version})
}

// startEpisodes dispatches the episodes of started groups, the oldest first, and starts groups, as far as concurrency
// and staleness allow.
func (m *Machine) startEpisodes(e Event) []Command {
	if m.stopRule(e) != "" {
		return nil // what is under way ends the run, or an evaluation with a better rate lets it go on
	}
	free := m.cfg.Concurrency - m.underWay()
	var cs []Command
	dispatch := func(g *group) {
		for _, s := range g.slots {
			if s.waiting && free > 0 {
				s.waiting, s.oldest = false, m.version
				free--
				cs = append(cs, m.issue(Command{Type: CommandEpisode, Episode: s.spec})...)
			}
		}
	}
	for _, g := range m.sampling.groups {
		dispatch(g)
	}
	for free > 0 && m.tasksLeft() > 0 && m.mayStart() {
		g := m.startGroup()
		m.sampling.groups = append(m.sampling.groups, g)
		dispatch(g)
	}
	return cs
}

// underWay counts the episodes that hold a slot of schedule.concurrency, or wait for one.
func (m *Machine) underWay() int {
	n := 0
	for _, c := range m.outstanding {
		n += int(indicator(c.Type == CommandEpisode))
	}
	return n
}

// mayStart is the bound of staleness on starting groups: whatever is started beyond it would be too old before its turn
// came. Oversampling adds to it while no update is under way; beyond what the remaining updates need nothing is started.
func (m *Machine) mayStart() bool {
	need, extra := m.cfg.GroupsPerUpdate, 0
	if !m.async.busy {
		extra = m.cfg.Sampling.Dispatch(need) - need
	}
	bound := (m.cfg.Async.MaxStaleness+1)*need + extra - m.async.taken
	remaining := m.cfg.Sampling.Dispatch((m.cfg.MaxUpdates - m.update) * need)
	open, ready := m.live()
	return open+ready < min(bound, remaining)
}

// startGroup draws a task and makes its group, none of whose episodes is dispatched yet.
func (m *Machine) startGroup() *group {
	task := m.nextOf()
	g := &group{id: fmt.Sprintf("g%05d", m.async.started), task: task}
	for a := range m.cfg.GroupSize {
		spec := EpisodeSpec{ID: fmt.Sprintf("%s/a%02d", g.id, a), Group: g.id, Task: task, Attempt: a, Purpose: PurposeTrain,
			Seed: m.seedOf("train", "group", m.async.started, a)}
		g.slots = append(g.slots, &slot{spec: spec, group: g, waiting: true, oldest: noVersion, newest: noVersion})
	}
	m.async.started++
	return g
}

// drain ends training: what no update took is given up, and stored once nothing of it is under way.
func (m *Machine) drain(reason string) []Command {
	m.phase, m.stopReason = PhaseDraining, reason
	return append(m.giveUp(FateSurplus, (*group).wanted), m.drained()...)
}

// drained has what no update took stored once nothing is outstanding; the end of the run follows.
func (m *Machine) drained() []Command {
	if len(m.outstanding) > 0 {
		return nil
	}
	s := &Sampled{Fates: map[string]Fate{}}
	var specs []EpisodeSpec
	for _, g := range m.sampling.groups {
		s.Fates[g.id] = g.fate
		specs = append(specs, specsOf(g.slots)...)
	}
	m.sampling.groups = nil
	return m.issue(Command{Type: CommandClose, Episodes: specs, Sampling: s})
}

// closed takes in what no update took.
func (m *Machine) closed(e Event) []Command {
	m.tokens += e.Tokens
	return m.finish(m.stopReason)
}

// restarted notes that the episodes under way begin anew, under the version served now or a later one.
func (m *Machine) restarted() {
	for _, g := range m.sampling.groups {
		for _, s := range g.slots {
			if !s.ended && s.oldest != noVersion {
				s.oldest = m.version
			}
		}
	}
}

// Untaken reports whether a training episode of an asynchronous run belongs to a group that no finalised update has:
// the growing file must keep it.
func (m *Machine) Untaken() map[string]bool {
	out := map[string]bool{}
	for _, g := range m.sampling.groups {
		for _, s := range g.slots {
			out[s.spec.ID] = true
		}
	}
	return out
}
