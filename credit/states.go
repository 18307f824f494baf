package credit

import "math"

// at is one step of a group: episode i, step t.
type at struct{ i, t int }

// stateIDs interns the state keys of a group: one small number a step, equal exactly where the keys are.
func (g *group) stateIDs() [][]int {
	ids := make(map[string]int)
	out := make([][]int, len(g.episodes))
	for i, e := range g.episodes {
		out[i] = make([]int, len(e.Steps))
		for t := range e.Steps {
			out[i][t] = intern(ids, e.Steps[t].State)
		}
	}
	return out
}

func intern[K comparable](ids map[K]int, key K) int {
	id, ok := ids[key]
	if !ok {
		id = len(ids)
		ids[key] = id
	}
	return id
}

// returns gives each step gamma^(T-t)*R, T being the episode's last step. Milestone reward never enters.
func (g *group) returns(gamma float64) [][]float64 {
	out := make([][]float64, len(g.episodes))
	for i, e := range g.episodes {
		out[i] = make([]float64, len(e.Steps))
		for t := range out[i] {
			out[i][t] = math.Pow(gamma, float64(len(e.Steps)-1-t)) * e.Outcome.Reward
		}
	}
	return out
}

// normaliseWithin compares the values of steps that share an id (negative = joins no group) and hands each step its
// normalised value. Steps alone in their group are not handed on.
func normaliseWithin(ids [][]int, values [][]float64, d deviation, eps float64, put func(at, float64)) {
	var groups [][]at
	for i := range ids {
		for t, id := range ids[i] {
			if id < 0 {
				continue
			}
			for len(groups) <= id {
				groups = append(groups, nil)
			}
			groups[id] = append(groups[id], at{i, t})
		}
	}
	for _, members := range groups {
		if len(members) < 2 {
			continue
		}
		x := make([]float64, len(members))
		for k, m := range members {
			x[k] = values[m.i][m.t]
		}
		normalise(x, d, eps)
		for k, m := range members {
			put(m, x[k])
		}
	}
}
