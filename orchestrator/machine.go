package orchestrator

import (
	"fmt"
	"hash/fnv"
	"math"
	"sort"

	milepost "github.com/milepost-rl/milepost"
)

// Tasks are the task ids of a run by split. A split may be empty: its evaluation is then left out.
type Tasks struct {
	Train, Validation, Heldout []string
	Weights                    []float64 // of Train, in its order, each more than 0 and relative to the others; nil = all the same
}

// Phase is what the run is doing.
type Phase string

// The phases, in the order in which a run passes them; rolling to validating repeat.
const (
	PhaseIdle       Phase = "idle"
	PhaseBefore     Phase = "evaluating before"
	PhaseRolling    Phase = "rolling out"
	PhaseFinalising Phase = "waiting for probes"
	PhaseTraining   Phase = "updating"
	PhasePushing    Phase = "pushing weights"
	PhaseValidating Phase = "validating"
	PhaseAsync      Phase = "rolling out and updating" // mode async: the whole of training, validations included
	PhaseDraining   Phase = "ending rollouts"          // mode async: what no update needs any more
	PhaseBest       Phase = "pushing the best weights"
	PhaseAfter      Phase = "evaluating after"
	PhaseDone       Phase = "done"
)

// Phases are all of them, in their order.
var Phases = []Phase{PhaseIdle, PhaseBefore, PhaseRolling, PhaseFinalising, PhaseTraining, PhasePushing, PhaseValidating, PhaseAsync, PhaseDraining, PhaseBest, PhaseAfter, PhaseDone}

// Names of the evaluations of a run. Validations are named "validation-<update>".
const (
	EvalBefore = "heldout-before"
	EvalAfter  = "heldout-after"
)

// slot is one episode that the current batch waits for.
type slot struct {
	spec  EpisodeSpec
	ended bool
	group *group // under dynamic sampling and in mode async, else nil

	// In mode async, async.go:
	waiting        bool  // not dispatched yet
	oldest, newest int32 // versions of its trained tokens; while it is under way oldest is the version at its dispatch
}

// Machine is the pure core of a run: generation, barrier, update, push, and evaluation around them; in mode async
// generation goes on beside the others (async.go).
//
// Invariants, held by the tests over random interleavings: every dispatched episode ends exactly once or is retried
// under a new id; a batch is finalised once, trained once, and only after each of its episodes ended; weights are
// pushed before anything is sampled after an update; nothing is outstanding in phase done; an event that answers no
// outstanding command is refused and changes nothing. Those of dynamic sampling stand in sampling.go, those of mode async, in
// which an update takes only some of the groups and sampling does not stop for it, in async.go.
type Machine struct {
	cfg   Config
	tasks Tasks
	seed  uint64

	phase       Phase
	update      int // index of the current update, from 1
	version     int32
	tokens      int64 // sampled for training so far
	evalName    string
	slots       []*slot
	outstanding map[string]Command
	draw        draw
	sampling    sampling
	async       async

	bestVersion int32
	bestRate    float64
	sinceBest   int
	stopReason  string
	epoch       uint64
}

// NewMachine returns a machine in phase idle. The configuration must be valid.
func NewMachine(cfg Config, tasks Tasks, seed uint64) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(tasks.Train) == 0 && cfg.MaxUpdates > 0 {
		return nil, milepost.E("orchestrator: new", milepost.KindInvalid, "no training tasks, but schedule.max_updates is %d", cfg.MaxUpdates)
	}
	if n := len(tasks.Weights); n > 0 && n != len(tasks.Train) {
		return nil, milepost.E("orchestrator: new", milepost.KindInvalid, "%d weights for %d training tasks", n, len(tasks.Train))
	}
	for i, w := range tasks.Weights {
		if !(w > 0) || math.IsInf(w, 0) {
			return nil, milepost.E("orchestrator: new", milepost.KindInvalid, "training task %s weighs %v; allowed: a number of more than 0", tasks.Train[i], w)
		}
	}
	return &Machine{cfg: cfg, tasks: tasks, seed: seed, phase: PhaseIdle, outstanding: map[string]Command{}, bestRate: -1, draw: newDraw(), sampling: sampling{used: map[string]bool{}}}, nil
}

// Phase returns the current phase.
func (m *Machine) Phase() Phase { return m.phase }

// Update returns the index of the current update, from 1; 0 before the first.
func (m *Machine) Update() int { return m.update }

// Version returns the weight version that the servers have.
func (m *Machine) Version() int32 { return m.version }

// Tokens returns how many tokens were sampled for training so far.
func (m *Machine) Tokens() int64 { return m.tokens }

// Best returns the weight version with the best validation so far and its rate; the rate is -1 before any validation.
func (m *Machine) Best() (int32, float64) { return m.bestVersion, m.bestRate }

// Epoch returns the number of times the run was started.
func (m *Machine) Epoch() uint64 { return m.epoch }

// Progress returns how many episodes of the current batch have ended for good, and how many there are. In mode async the
// batch is the evaluation under way or else what no update has taken.
func (m *Machine) Progress() (done, total int) {
	slots := m.slots
	if m.phase == PhaseAsync && !m.evaluating() {
		slots = m.groupSlots()
	}
	for _, s := range slots {
		if s.ended {
			done++
		}
	}
	return done, len(slots)
}

// groupSlots are the slots of the groups that no update has taken.
func (m *Machine) groupSlots() []*slot {
	var out []*slot
	for _, g := range m.sampling.groups {
		out = append(out, g.slots...)
	}
	return out
}

// enter makes the phase the given one; that of an asynchronous run's training stays.
func (m *Machine) enter(p Phase) {
	if m.phase != PhaseAsync {
		m.phase = p
	}
}

// Outstanding returns the commands that no event has answered yet, ordered by key: what a resumed run does first.
func (m *Machine) Outstanding() []Command {
	out := make([]Command, 0, len(m.outstanding))
	for _, c := range m.outstanding {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key() < out[j].Key() })
	return out
}

// Step takes one event and returns the commands it gives rise to. An event that answers nothing outstanding is an
// error of kind conflict, and the machine is as before.
func (m *Machine) Step(e Event) ([]Command, error) {
	switch e.Type {
	case EventStarted:
		m.epoch = e.Epoch
		if m.phase == PhaseIdle {
			return m.begin(e), nil
		}
		m.restarted()
		return nil, nil
	case EventEpisodeEnded:
		return m.episodeEnded(e)
	case EventGroupJudged:
		if err := m.answer(judgeKey(e.Group)); err != nil {
			return nil, err
		}
		return m.groupJudged(e), nil
	case EventEvaluated:
		if err := m.answer("evaluate " + e.Eval); err != nil {
			return nil, err
		}
		return m.evaluated(e), nil
	case EventFinalised:
		if err := m.answer(updateKey(CommandFinalise, e.Update)); err != nil {
			return nil, err
		}
		return m.finalised(e), nil
	case EventTrained:
		if err := m.answer(updateKey(CommandTrain, e.Update)); err != nil {
			return nil, err
		}
		m.enter(PhasePushing)
		return m.issue(Command{Type: CommandPush, Version: int32(m.update)}), nil
	case EventPushed:
		if err := m.answer(pushKey(e.Version)); err != nil {
			return nil, err
		}
		return m.pushed(e), nil
	case EventClosed:
		if err := m.answer(string(CommandClose)); err != nil {
			return nil, err
		}
		return m.closed(e), nil
	}
	return nil, milepost.E("orchestrator: step", milepost.KindInvalid, "event type %q is unknown", e.Type)
}

// answer removes the outstanding command of the given key.
func (m *Machine) answer(key string) error {
	if _, ok := m.outstanding[key]; !ok {
		return milepost.E("orchestrator: step", milepost.KindConflict, "an event answers %q, which is not outstanding (phase %s)", key, m.phase)
	}
	delete(m.outstanding, key)
	return nil
}

// issue records commands as outstanding and returns them. Stop and cancel need no answer.
func (m *Machine) issue(cs ...Command) []Command {
	for _, c := range cs {
		if c.Type != CommandStop && c.Type != CommandCancel {
			m.outstanding[c.Key()] = c
		}
	}
	return cs
}

// seedOf derives a seed for one purpose from the run's seed; stable across versions of Go.
func (m *Machine) seedOf(parts ...any) int64 { return derive(m.seed, parts...) }

// evalSeedOf derives a seed of an evaluation.
func (m *Machine) evalSeedOf(parts ...any) int64 {
	if m.cfg.EvalSeed != 0 {
		return derive(uint64(m.cfg.EvalSeed), parts...)
	}
	return derive(m.seed, parts...)
}

func derive(seed uint64, parts ...any) int64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed)
	for _, p := range parts {
		fmt.Fprint(h, "/", p)
	}
	return int64(h.Sum64() >> 1)
}
