package credit

import (
	"fmt"

	"github.com/milepost-rl/milepost"
)

// Step reward, backward credit, format term and process advantage. Source: SWE-MILE, arXiv 2609.32631:
//
//	r_t = w_ver*(change of phi_ver) + w_nav*(change of phi_nav)
//	b_t = lambda * sum over k>t of gamma^(k-t) * r_k
//	f_t = 0, or -1 where the call did not parse, broke its schema, or broke policy
//	p_t = r_t + b_t + w_format*f_t
//
// p is neither normalised nor centred. No departures; process_baseline.go holds an extension.

// walker computes the process part of episodes one after another, keeping its memory between them.
type walker struct {
	m        Milestone
	ver      verifier
	nav      navigator
	warnings []string
}

// episode fills the fields phi_ver, phi_nav, r, b, f and p of out, which has one element a step.
func (w *walker) episode(e *milepost.Episode, p *plan, out []milepost.StepCredit) {
	if !w.m.Enabled {
		return
	}
	w.ver.reset(p, &w.m)
	w.nav.reset(p, &w.m)
	for t := range e.Steps {
		s, c := &e.Steps[t], &out[t]
		if w.m.Verification {
			var change float64
			c.PhiVer, change = w.verify(e, t)
			c.R += p.weights.ver * change
		}
		if w.m.Navigation {
			var change float64
			c.PhiNav, change = w.nav.step(s)
			c.R += p.weights.nav * change
		}
		if w.m.Format && !s.Valid {
			c.F = -1
		}
	}
	w.backward(out)
}

func (w *walker) verify(e *milepost.Episode, t int) (phi, change float64) {
	phi, change, warning := w.ver.step(e.Steps[t].Probe)
	if warning != "" {
		w.warnings = append(w.warnings, fmt.Sprintf("episode %s step %d: probe is not trusted: %s", e.ID, t, warning))
	}
	return phi, change
}

// backward adds b and p. It runs from the last step: sum_{k>t} gamma^(k-t) r_k = gamma * (r_{t+1} + the same at t+1).
func (w *walker) backward(out []milepost.StepCredit) {
	later := 0.0
	for t := len(out) - 1; t >= 0; t-- {
		c := &out[t]
		c.B = w.m.BackwardLambda * later
		c.P = c.R + c.B + w.m.WFormat*c.F
		later = w.m.BackwardGamma * (c.R + later)
	}
}
