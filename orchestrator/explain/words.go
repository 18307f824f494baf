package explain

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Fact is one thing about an episode, in words.
type Fact struct {
	Label string
	Lines []string
}

// Header is what the steps stand on: outcome, reward, baseline, group and rules.
func (e *Episode) Header() []Fact {
	name := e.ID
	if e.Batch != "" {
		name += " (" + e.Batch + ")"
	}
	return []Fact{
		{"episode", []string{flat(name)}}, {"task", []string{flat(fmt.Sprintf("%s, %s", e.Task, e.Kind))}}, {"outcome", []string{e.outcome()}},
		{"reward", []string{e.reward()}}, {"baseline", []string{e.baseline()}}, {"group", e.group()}, {"credit", e.rules()},
	}
}

// Footer is what became of the group, and what the reader should know.
func (e *Episode) Footer() []Fact {
	return []Fact{{"group", e.kept()}, {"remarks", e.Remarks}}
}

// Passes says in words what a verdict or baseline found.
func Passes(p *milepost.Probe) string {
	switch {
	case p == nil:
		return "not recorded"
	case !p.Trusted && p.Status == "":
		return "not trusted: no result" + colon(p.Reason)
	case !p.Trusted:
		return "not trusted: " + string(p.Status) + colon(p.Reason)
	}
	return counted(p)
}

// counted are the tests that a probe found passing.
func counted(p *milepost.Probe) string {
	if p.Report == nil && p.Partition != nil {
		c := *p.Partition
		return fmt.Sprintf("%d of %d F2P and %d of %d P2P tests pass (counts only)", c.F2P.Passed, c.F2P.Expected, c.P2P.Passed, c.P2P.Expected)
	}
	return fmt.Sprintf("%d of %d tests pass", p.Report.Count(milepost.Passed), len(p.Report))
}

// found says what a step's probe found, or why it is not trusted.
func found(p *milepost.Probe, n credit.StepNote) string {
	if !n.Trusted {
		return "not trusted: " + flat(n.Reason)
	}
	return counted(p)
}

// notes says what came of a probe beyond "the potential is what it shows".
func notes(p *milepost.Probe, n credit.StepNote) []string {
	var out []string
	add := func(on bool, format string, args ...any) {
		if on {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	if p == nil {
		return nil
	}
	add(n.Parts > 1, "part %d of %d of one probe shared by consecutive steps; each earns an even share of its change", n.Part, n.Parts)
	add(n.Carried, "the potential is carried forward; the next trusted probe earns the change since")
	add(n.Freezes, "continuity lost: the potential is frozen")
	add(n.Frozen, "the potential was frozen before: nothing moves")
	add(n.Anchored, "re-anchored: the potential is set to what the probe shows and earns nothing")
	add(n.Since > 0 && !n.Frozen && !n.Anchored, "earns the change since %s before it that %s not trusted", plural(n.Since, "probe"), verb(n.Since, "was", "were"))
	add(n.Clipped != 0, "the change is clipped to %s; %s tests are cut off", number(n.Change), number(n.Clipped))
	add(p.Cached, "cached")
	return out
}

// Baseline says in words what verification is held against.
func (e *Episode) baseline() string {
	if !e.Baseline.Trusted {
		return "no verification credit: " + flat(e.Baseline.Reason)
	}
	return fmt.Sprintf("trusted: %s fail before (F2P), %d pass (P2P)", plural(e.Baseline.F2P, "test"), e.Baseline.P2P)
}

// outcome says how the episode ended.
func (e *Episode) outcome() string {
	parts := []string{"not resolved"}
	if e.Resolved {
		parts[0] = "resolved"
	}
	if e.Excluded {
		parts[0] = string(e.Status) + ": in no statistic, without credit" + colon(e.Error)
	} else if e.Status == milepost.EpisodeLimit {
		parts = append(parts, "stopped at a limit")
	}
	if e.Stop != "" {
		parts = append(parts, "ended by "+string(e.Stop))
	}
	if e.Batch != "" {
		parts = append(parts, "at the end "+e.Verdict)
	}
	return flat(strings.Join(parts, "; "))
}

// reward says what the outcome reward is made of.
func (e *Episode) reward() string {
	if e.Excluded {
		return "none"
	}
	total := number(e.Reward)
	r := e.Earned
	if r == nil {
		return total + " (as the case gives it)"
	}
	if math.Abs(r.Total-e.Reward) > tolerance {
		return total + " (as recorded)"
	}
	parts := []string{r.Source + " " + number(r.Outcome)}
	if r.Source == credit.OutcomePotential {
		parts[0] = "verification potential of the final tree " + number(r.Outcome)
	}
	switch l := r.Limit; {
	case l != nil && l.Step < 0:
		parts[0] += " (at a limit; no step is known to have passed everything)"
	case l != nil:
		parts[0] += fmt.Sprintf(" (at a limit; step %d, counted from 0, passed everything first: %d/%d)", l.Step, l.Step+1, l.Steps)
	}
	if r.TokenTerm != 0 {
		parts = append(parts, fmt.Sprintf("token term %s (%d sampled)", number(r.TokenTerm), r.Tokens))
	}
	if r.TurnTerm != 0 {
		parts = append(parts, fmt.Sprintf("turn term %s (%d turns)", number(r.TurnTerm), r.Turns))
	}
	return total + " = " + strings.Join(parts, " + ")
}

// rules says by which numbers the terms add up, one line each.
func (e *Episode) rules() []string {
	w := e.Weights
	a := e.Estimator + ": A_out = " + e.Rule
	if len(w.Off) > 0 && w.Off[0] == "milestone" {
		return []string{a, fmt.Sprintf("A = %s A_out; milestone credit is off", number(w.Outcome))}
	}
	p := fmt.Sprintf("A = %s A_out + p; p = r + b + %s f", number(w.Outcome), number(w.Format))
	if w.Centred {
		p += ", less the group's mean"
	}
	r := fmt.Sprintf("r = %s (change of φver, %s) + %s (change of φnav); b = %s of later r, discounted by %s a step",
		number(w.Verification), e.Mode, number(w.Navigation), number(w.BackwardLambda), number(w.BackwardGamma))
	if len(w.Off) > 0 {
		r += "; off: " + strings.Join(w.Off, ", ")
	}
	return []string{a, p, r}
}

// group says what A_out is compared with, one line for the rewards and one an objective.
func (e *Episode) group() []string {
	g := e.GroupNote
	head := fmt.Sprintf("%s: %s", e.Group, plural(len(g.Episodes), "episode"))
	if g.Excluded > 0 {
		head += fmt.Sprintf(" (and %d in no statistic)", g.Excluded)
	}
	out := []string{fmt.Sprintf("%s, rewards %s; mean %s, std %s", head, list(g.Rewards), number(g.Mean), number(g.Std))}
	for _, t := range g.Objectives {
		out = append(out, fmt.Sprintf("%s %s; mean %s, std %s", t.Name, list(t.Values), number(t.Mean), number(t.Std)))
	}
	return out
}

// kept says why the group was kept or dropped: by the criterion in force, or by each where there is none.
func (e *Episode) kept() []string {
	var out []string
	for _, k := range e.GroupNote.Kept {
		if e.KeepGroup != "" && k.Criterion != e.KeepGroup {
			continue
		}
		verdict := "dropped"
		if k.Kept {
			verdict = "kept"
		}
		out = append(out, fmt.Sprintf("%s by %s: %s", verdict, k.Criterion, k.Why))
	}
	if e.Dropped != "" {
		out = append(out, "the episode did not train: "+flat(e.Dropped))
	}
	return out
}

// list shows numbers, at most 24.
func list(x []float64) string {
	const most = 24
	var out []string
	for _, v := range x[:min(len(x), most)] {
		out = append(out, number(v))
	}
	if len(x) > most {
		out = append(out, "…")
	}
	return strings.Join(out, " ")
}

// number is a value for people: four significant digits.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func colon(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
