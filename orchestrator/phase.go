package orchestrator

import (
	"fmt"
	"slices"

	milepost "github.com/milepost-rl/milepost"
)

// begin starts with the held-out evaluation of the weights as they are.
func (m *Machine) begin(e Event) []Command {
	if !m.cfg.EvalBefore {
		return m.roll(e)
	}
	if len(m.tasks.Heldout) == 0 {
		return m.validateOrRoll(e)
	}
	m.phase = PhaseBefore
	return m.evaluate(EvalBefore, m.tasks.Heldout, m.cfg.EvalSamples)
}

// validateOrRoll validates version 0 where validation is on, so that "best" has a starting point.
func (m *Machine) validateOrRoll(e Event) []Command {
	if m.cfg.EvalEvery > 0 && len(m.tasks.Validation) > 0 {
		return m.validate()
	}
	return m.roll(e)
}

func (m *Machine) validate() []Command {
	m.enter(PhaseValidating)
	return m.evaluate(validationName(m.update), m.tasks.Validation, m.cfg.ValidationSamples)
}

// evaluate dispatches samples attempts at each task under the name of an evaluation.
func (m *Machine) evaluate(name string, tasks []string, samples int) []Command {
	m.evalName = name
	specs := make([]EpisodeSpec, 0, len(tasks)*samples)
	for _, t := range tasks {
		for a := range samples {
			specs = append(specs, EpisodeSpec{
				ID: fmt.Sprintf("%s/%s/%d", name, t, a), Group: name + "/" + t, Task: t, Attempt: a,
				Purpose: Purpose(name), Seed: m.evalSeedOf(evalSeedName(name), t, a),
			})
		}
	}
	return m.dispatch(specs)
}

// evalSeedName makes the evaluations before and after share their sampling seeds, so that they are paired.
func evalSeedName(name string) string {
	if name == EvalBefore || name == EvalAfter {
		return "heldout"
	}
	return "validation"
}

// roll dispatches the groups of the next update, or ends the run by a stated rule. Mode async goes on as it can.
func (m *Machine) roll(e Event) []Command {
	if m.cfg.Mode == ModeAsync {
		return m.goOn(e)
	}
	if reason := m.stopRule(e); reason != "" {
		return m.finish(reason)
	}
	m.update++
	m.phase = PhaseRolling
	if m.cfg.Sampling.Dynamic() {
		return m.beginSampling()
	}
	var specs []EpisodeSpec
	m.sampling = sampling{used: map[string]bool{}}
	for g := range m.cfg.GroupsPerUpdate {
		specs = append(specs, m.groupSpecs(g, m.nextOf())...)
	}
	return m.dispatch(specs)
}

// nextOf draws a task without dynamic sampling, or in mode async. Shares keep an update from using a task twice while there is another; the
// plain permutation goes on where it is.
func (m *Machine) nextOf() string {
	if !m.weighted() {
		return m.nextTask()
	}
	if m.unused() == 0 {
		m.sampling.used = map[string]bool{}
	}
	task := m.nextTask()
	m.sampling.used[task] = true
	return task
}

// groupSpecs are the episodes of the g-th group of the update.
func (m *Machine) groupSpecs(g int, task string) []EpisodeSpec {
	group := fmt.Sprintf("u%04d/g%02d", m.update, g)
	specs := make([]EpisodeSpec, m.cfg.GroupSize)
	for a := range specs {
		specs[a] = EpisodeSpec{
			ID: fmt.Sprintf("%s/a%02d", group, a), Group: group, Task: task, Attempt: a, Purpose: PurposeTrain,
			Update: m.update, Seed: m.seedOf("train", m.update, g, a),
		}
	}
	return specs
}

// stopRule returns why no further update is begun, or "".
func (m *Machine) stopRule(e Event) string {
	switch {
	case m.update >= m.cfg.MaxUpdates:
		return fmt.Sprintf("max_updates: %d updates are done", m.update)
	case m.cfg.MaxWall > 0 && e.Active >= m.cfg.MaxWall.Seconds():
		return fmt.Sprintf("max_wall: %.0f s of %.0f s are used", e.Active, m.cfg.MaxWall.Seconds())
	case m.cfg.MaxTokens > 0 && m.tokens >= m.cfg.MaxTokens:
		return fmt.Sprintf("max_tokens: %d of %d sampled tokens are used", m.tokens, m.cfg.MaxTokens)
	case m.cfg.Patience > 0 && m.sinceBest >= m.cfg.Patience:
		return fmt.Sprintf("patience: %d validations without a better rate than %.3f", m.sinceBest, m.bestRate)
	case m.tasksLeft() == 0 && !m.pending():
		return m.noTasks()
	}
	return ""
}

// dispatch makes specs the batch that the phase waits for.
func (m *Machine) dispatch(specs []EpisodeSpec) []Command {
	m.slots = m.slots[:0]
	cs := make([]Command, 0, len(specs))
	for _, s := range specs {
		m.slots = append(m.slots, &slot{spec: s})
		cs = append(cs, Command{Type: CommandEpisode, Episode: s})
	}
	return m.issue(cs...)
}

// episodeEnded marks the slot, retries what infrastructure lost, and closes the batch when nothing is left.
func (m *Machine) episodeEnded(e Event) ([]Command, error) {
	if err := m.answer("episode " + e.Episode); err != nil {
		return nil, err
	}
	var retry []Command
	s := m.slotOf(e.Episode)
	switch {
	case lost(e.Status) && s.spec.Retry < m.cfg.MaxRetries && s.group.needed():
		s.spec, s.oldest = retried(s.spec), m.version
		retry = m.issue(Command{Type: CommandEpisode, Episode: s.spec})
	case lost(e.Status):
		s.ended, s.oldest, s.newest = true, noVersion, noVersion
	default:
		s.ended, s.oldest, s.newest = true, e.Oldest, e.Newest
	}
	switch {
	case s.group != nil && m.cfg.Mode == ModeAsync:
		return append(retry, m.asyncEpisodeEnded(s.group, e)...), nil
	case s.group != nil:
		return append(retry, m.groupEpisodeEnded(s.group)...), nil
	case !allEnded(m.slots):
		return m.besides(retry, e), nil
	}
	return m.besides(m.batchEnded(), e), nil
}

// besides adds to commands what mode async does beside an evaluation, whose ended episodes leave room for others.
func (m *Machine) besides(cs []Command, e Event) []Command {
	if m.phase == PhaseAsync {
		return append(cs, m.goOn(e)...)
	}
	return cs
}

// slotOf returns the slot of an episode under way.
func (m *Machine) slotOf(id string) *slot {
	for _, s := range m.slots {
		if s.spec.ID == id {
			return s
		}
	}
	for _, s := range m.groupSlots() {
		if s.spec.ID == id {
			return s
		}
	}
	return nil
}

func allEnded(slots []*slot) bool {
	return !slices.ContainsFunc(slots, func(s *slot) bool { return !s.ended })
}

// lost reports whether infrastructure, not the policy, ended an episode.
func lost(s milepost.EpisodeStatus) bool {
	return s == milepost.EpisodeInfra || s == milepost.EpisodeCancelled
}

// retried is the spec of the next try: the same work under a new id.
func retried(s EpisodeSpec) EpisodeSpec {
	base := s.ID
	if s.Retry > 0 {
		base = base[:len(base)-len(fmt.Sprintf("+r%d", s.Retry))]
	}
	s.Retry++
	s.ID = fmt.Sprintf("%s+r%d", base, s.Retry)
	return s
}

func (m *Machine) batchEnded() []Command {
	specs := specsOf(m.slots)
	if m.phase == PhaseRolling {
		m.phase = PhaseFinalising
		return m.issue(Command{Type: CommandFinalise, Update: m.update, Episodes: specs})
	}
	return m.issue(Command{Type: CommandEvaluate, Eval: m.evalName, Update: m.update, Episodes: specs})
}

// finalised trains on the batch; a batch without any signal leaves the weights as they are.
func (m *Machine) finalised(e Event) []Command {
	m.tokens += e.Tokens
	for _, k := range e.Rates {
		m.measure(k.Task, float64(k.Graded), float64(k.Passed))
	}
	switch {
	case m.phase == PhaseAsync && m.evaluating():
		m.async.held = &e
		return m.goOn(e)
	case e.Rows == 0:
		return m.afterUpdate(e)
	}
	return m.learn(e)
}

// learn makes the update step on a finalised batch.
func (m *Machine) learn(e Event) []Command {
	m.enter(PhaseTraining)
	return m.issue(Command{Type: CommandTrain, Update: m.update, Batch: e.Batch, SHA256: e.SHA256})
}

func (m *Machine) pushed(e Event) []Command {
	m.version = e.Version
	if m.phase == PhaseBest {
		return m.evaluateAfter()
	}
	return m.afterUpdate(e)
}

func (m *Machine) evaluateAfter() []Command {
	m.phase = PhaseAfter
	return m.evaluate(EvalAfter, m.tasks.Heldout, m.cfg.EvalSamples)
}

func (m *Machine) afterUpdate(e Event) []Command {
	m.async.busy, m.async.taken = false, 0
	if m.cfg.EvalEvery == 0 || len(m.tasks.Validation) == 0 || m.update%m.cfg.EvalEvery != 0 {
		return m.roll(e)
	}
	return m.besides(m.validate(), e)
}

func (m *Machine) evaluated(e Event) []Command {
	m.evalName = ""
	switch m.phase {
	case PhaseBefore:
		return m.validateOrRoll(e)
	case PhaseAfter:
		return m.done()
	}
	switch {
	case e.Graded == 0: // lost to infrastructure: it says nothing of the weights
	case e.Rate > m.bestRate:
		m.bestRate, m.bestVersion, m.sinceBest = e.Rate, m.version, 0
	default:
		m.sinceBest++
	}
	return m.roll(e)
}

// finish serves the best weights and evaluates them; without validation the last weights are the best.
func (m *Machine) finish(reason string) []Command {
	m.stopReason = reason
	if m.bestRate < 0 || m.cfg.Final == FinalLast {
		m.bestVersion = m.version
	}
	if len(m.tasks.Heldout) == 0 || m.update == 0 {
		return m.done()
	}
	if m.bestVersion == m.version {
		return m.evaluateAfter()
	}
	m.phase = PhaseBest
	return m.issue(Command{Type: CommandPush, Version: m.bestVersion, Load: true})
}

func (m *Machine) done() []Command {
	m.phase = PhaseDone
	return []Command{{Type: CommandStop, Reason: m.stopReason}}
}
