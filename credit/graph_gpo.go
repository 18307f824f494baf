package credit

import "math"

// graphGPO: A = the episode's grpo part + the step's value normalised among the steps that share its state. Source:
// Graph-GPO, arXiv 2605.26684. One directed graph per group over state keys with unit edges; final states of episodes
// with R > 0 lead to a success node; d is the shortest distance to it, unreachable = 1 + the largest finite d over all
// nodes; value = scale*gamma^d(next state), the last step leading to the episode's final state.
//
// Departures from the authors' recipe (GraphGPO of verl-agent): there the last step of a success leads to the success node
// itself, without a node for the final state, so every distance is one less and every value larger by 1/gamma; that
// cancels in the normalisation but for eps, and not under mean. A failed episode that passes through the final state of a
// success is one edge from it here. The episode part counts each episode once, as in gigpo.go; both parts weigh 1; states
// are equal or not, without its similarity of texts; its distances relative to the state before are not built.
func graphGPO(c *Config, g *group, out [][]float64) error {
	d := c.deviation(sampleStd)
	r := g.rewards()
	normalise(r, d, c.Eps)
	spread(out, r)
	states, next, final := g.transitions()
	distance := distances(states, next, g.successes(final))
	values := make([][]float64, len(states))
	for i := range states {
		values[i] = make([]float64, len(states[i]))
		for t := range states[i] {
			values[i][t] = c.GraphScale * math.Pow(c.GraphGamma, distance[next[i][t]])
		}
	}
	normaliseWithin(states, values, d, c.Eps, func(s at, a float64) { out[s.i][s.t] += a })
	return nil
}

// transitions interns the states of the group: per step the node before the action and the node after it, and per
// episode the node of its final state.
func (g *group) transitions() (states, next [][]int, final []int) {
	ids := make(map[string]int)
	for _, e := range g.episodes {
		before, after := make([]int, len(e.Steps)), make([]int, len(e.Steps))
		for t := range e.Steps {
			before[t] = intern(ids, e.Steps[t].State)
			if t > 0 {
				after[t-1] = before[t]
			}
		}
		end := intern(ids, e.FinalState)
		if len(after) > 0 {
			after[len(after)-1] = end
		}
		states, next, final = append(states, before), append(next, after), append(final, end)
	}
	return states, next, final
}

// successes returns the final nodes of the episodes with R > 0.
func (g *group) successes(final []int) []int {
	var out []int
	for i, e := range g.episodes {
		if e.Outcome.Reward > 0 {
			out = append(out, final[i])
		}
	}
	return out
}

// distances returns the number of edges from each node to the success node, which the nodes in goals lead to, by
// breadth-first search against the edges.
func distances(states, next [][]int, goals []int) map[int]float64 {
	back := make(map[int][]int)
	for i := range states {
		for t, s := range states[i] {
			back[next[i][t]] = append(back[next[i][t]], s)
		}
	}
	d := make(map[int]float64)
	reach := func(queue []int, node int, distance float64) []int {
		if _, known := d[node]; known {
			return queue
		}
		d[node] = distance
		return append(queue, node)
	}
	var queue []int
	for _, node := range goals {
		queue = reach(queue, node, 1)
	}
	largest := 0.0
	for ; len(queue) > 0; queue = queue[1:] {
		largest = d[queue[0]]
		for _, s := range back[queue[0]] {
			queue = reach(queue, s, largest+1)
		}
	}
	for node := range back { // every node that is the next state of a step
		reach(nil, node, largest+1)
	}
	return d
}
