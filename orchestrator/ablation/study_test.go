package ablation

import (
	"fmt"
	"math/rand/v2"

	"github.com/milepost-rl/milepost/orchestrator"
)

// evaluation makes an evaluation out of each task's share; samples attempts a task.
func evaluation(name string, shares []float64, samples int, r *rand.Rand) *orchestrator.Evaluation {
	e := &orchestrator.Evaluation{Name: name, Tasks: map[string][]float64{}}
	for k, p := range shares {
		id := fmt.Sprintf("task-%02d", k)
		for range samples {
			v := 0.0
			if r.Float64() < p {
				v = 1
			}
			e.Tasks[id] = append(e.Tasks[id], v)
			e.Graded++
		}
	}
	return e
}

// measure puts a held-out measurement on a point.
func (p *Point) measure(e *orchestrator.Evaluation) {
	p.Tasks = taskRates(*e)
	rate := meanOf(p.Tasks)
	p.Heldout = &rate
}

// armSpec is how an arm of a synthetic study learns.
type armSpec struct {
	name    string
	gain    float64 // of the true rate of every task, over the whole run
	tokens  int64   // an update
	missing int     // runs, from the last, that have not ended
}

// synthetic makes a study in which tasks differ in difficulty, seeds in luck, and arms in what they gain.
func synthetic(arms []armSpec, seeds, tasks, updates int, seedSpread float64, seed uint64) Study {
	r := rand.New(rand.NewPCG(seed, 7))
	hard := make([]float64, tasks)
	for k := range hard {
		hard[k] = .1 + .5*r.Float64()
	}
	luck := make([]float64, seeds)
	for i := range luck {
		luck[i] = seedSpread * r.NormFloat64()
	}
	shares := func(gain float64) []float64 {
		out := make([]float64, tasks)
		for k := range out {
			out[k] = min(1, max(0, hard[k]+gain))
		}
		return out
	}
	s := Study{Name: "What credit does", Command: "milepost ablate study.yaml", Reference: arms[0].name, Start: evaluation("heldout-before", shares(0), 4, r), Options: DefaultOptions()}
	s.Options.Resamples = 2000
	for _, a := range arms {
		arm := Arm{Name: a.name, About: "about " + a.name, Settings: []string{"credit.w_ver=0", "credit.x=|y|"}, Rate: 3e-5}
		for i, lr := range []float64{1e-5, 3e-5, 1e-4} {
			arm.Search = append(arm.Search, Trial{Rate: lr, Seed: 100, Score: .2 + .01*float64(i), Updates: 8, Dir: fmt.Sprintf("search/%s/%g", a.name, lr), Finished: true})
		}
		for i := range seeds {
			run := Run{Seed: int64(i + 1), Dir: fmt.Sprintf("runs/%s/s%d", a.name, i+1), Finished: i < seeds-a.missing}
			for u := 1; u <= updates; u++ {
				edited := 1 - float64(u)/100
				skill := (a.gain + luck[i] + .3*seedSpread*r.NormFloat64()) * float64(u) / float64(updates)
				p := Point{Update: u, Episodes: 32 * u, Tokens: a.tokens * int64(u), Active: 60 * float64(u), Train: min(1, max(0, .3+skill+.1*(r.Float64()-.5))), Turns: 6, SubmittedRate: .9, EditedRate: &edited, Entropy: .5, GroupsWithoutSignal: .25}
				p.Reward = p.Train
				if u%4 == 0 {
					p.measure(evaluation(fmt.Sprintf("validation-%d", u), shares(skill), 2, r))
				}
				run.Points = append(run.Points, p)
			}
			last := &run.Points[updates-1]
			run.Cost = Cost{Episodes: last.Episodes, Tokens: last.Tokens, Probes: 90 * updates, Active: last.Active + 300}
			if run.Finished {
				run.Stop, run.FinalUpdate = fmt.Sprintf("max_updates: %d updates are done", updates), updates
				run.Final = evaluation("heldout-after", shares(a.gain+luck[i]), 4, r)
				last.measure(run.Final)
			}
			arm.Runs = append(arm.Runs, run)
		}
		s.Arms = append(s.Arms, arm)
	}
	return s
}

// usual is a study as it is carried out: a reference, five arms, one of them with a run that has not ended.
func usual() Study {
	return synthetic([]armSpec{{"full credit", .3, 41000, 0}, {"outcome only", .08, 43000, 0}, {"no process credit", .22, 39000, 0},
		{"no verification", .29, 40500, 1}, {"token level", .31, 52000, 0}, {"a very long name of an arm that changes much", .15, 40000, 0}}, 3, 40, 24, .02, 1)
}

// evaluationOf is an evaluation of given rewards.
func evaluationOf(tasks map[string][]float64) *orchestrator.Evaluation {
	e := &orchestrator.Evaluation{Tasks: tasks}
	for _, r := range tasks {
		e.Graded += len(r)
	}
	return e
}
