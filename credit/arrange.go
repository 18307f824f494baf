package credit

import "github.com/milepost-rl/milepost"

// arranged is a group with the places of its episodes in the inputs.
type arranged struct {
	group
	task   string
	inputs []int
}

// arrange checks the inputs and sorts them into groups, in order of first appearance. Excluded episodes join none.
func arrange(inputs []Input) ([]*arranged, error) {
	var order []*arranged
	byID := make(map[string]*arranged)
	seen := make(map[string]bool, len(inputs))
	for i, in := range inputs {
		if in.Episode == nil || in.Task == nil {
			return nil, milepost.E(opAssign, milepost.KindInvalid, "input %d has no episode or no task", i)
		}
		if seen[in.Episode.ID] {
			return nil, milepost.E(opAssign, milepost.KindInvalid, "episode %s is given twice", in.Episode.ID)
		}
		seen[in.Episode.ID] = true
		if excluded(in.Episode) {
			continue
		}
		if err := checkEpisode(in.Episode); err != nil {
			return nil, err
		}
		g := byID[in.Episode.Group]
		if g == nil {
			g = &arranged{group: group{id: in.Episode.Group}, task: in.Task.ID}
			byID[g.id] = g
			order = append(order, g)
		}
		if g.task != in.Task.ID {
			return nil, milepost.E(opAssign, milepost.KindInvalid,
				"episode %s: group %s mixes tasks %s and %s; allowed: one task a group", in.Episode.ID, g.id, g.task, in.Task.ID)
		}
		g.episodes = append(g.episodes, in.Episode)
		g.inputs = append(g.inputs, i)
		g.values = append(g.values, in.Values)
	}
	return order, nil
}

func checkEpisode(e *milepost.Episode) error {
	if r := e.Outcome.Reward; !isFinite(r) {
		return milepost.E(opAssign, milepost.KindInvalid,
			"episode %s: the reward, earned at its last step %d, is %v; allowed: a finite number", e.ID, len(e.Steps)-1, r)
	}
	for t := range e.Steps {
		if e.Steps[t].Index != t {
			return stepError(e, t, "its index is %d; allowed: steps numbered from 0 in order", e.Steps[t].Index)
		}
	}
	return checkMerges(e)
}
