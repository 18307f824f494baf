package benchmarks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// Trust says how tasks and their certificates are taken.
type Trust string

// The ways.
const (
	TrustRequire Trust = "require" // every task needs a valid certificate
	TrustUse     Trust = "use"     // certificates count where there are valid ones; tasks without one are taken as they are
	TrustIgnore  Trust = "ignore"  // certificates are not read
)

// Trusts lists the ways.
var Trusts = []Trust{TrustRequire, TrustUse, TrustIgnore}

// Taken says what [LoadCertified] made of a set.
type Taken struct {
	Tasks       []*milepost.Task
	Unfit       []Problem           // tasks left out since their certificate names a problem
	Flaky       map[string][]string // by task: tests that count no more
	Uncertified int                 // tasks taken without a valid certificate
}

// Lines tells a person what was left out; empty where nothing was.
func (k *Taken) Lines(set string) []string {
	var out []string
	if n := len(k.Unfit); n > 0 {
		out = append(out, fmt.Sprintf("%s: %d of %d tasks are left out, their certificates name problems; the first is %s: %s",
			set, n, n+len(k.Tasks), k.Unfit[0].Task, k.Unfit[0].Reason))
	}
	tests := 0
	for _, ids := range k.Flaky {
		tests += len(ids)
	}
	if tests > 0 {
		first := slices.Sorted(maps.Keys(k.Flaky))[0]
		out = append(out, fmt.Sprintf("%s: %d flaky tests of %d tasks count neither for potentials nor for verdicts; the first are of %s: %s",
			set, tests, len(k.Flaky), first, strings.Join(k.Flaky[first], ", ")))
	}
	if k.Uncertified > 0 {
		out = append(out, fmt.Sprintf("%s: %d of %d tasks have no valid certificate", set, k.Uncertified, len(k.Tasks)))
	}
	return out
}

// LoadCertified is [Load] for tasks that train or are evaluated. Tasks whose certificate names a problem are left out, and
// flaky tests are marked (Task.Flaky). Errors are those of Load and, under require, KindConflict where a task has no valid
// certificate: the message names the first, why, and what to do.
//
// digest, which may be nil, is the content address of an image, "" where it has none: a certificate of another content is
// stale.
func LoadCertified(set string, trust Trust, digest func(image string) (string, error)) (*Taken, error) {
	const op = "benchmarks: load certified"
	k := &Taken{Flaky: map[string][]string{}}
	var certs map[string]*Certificate
	if trust != TrustIgnore {
		var err error
		if certs, err = LoadCertificates(set); err != nil {
			return nil, err
		}
	}
	first := "" // why the first task without a valid certificate has none
	err := Each(set, func(t *milepost.Task) error {
		if trust == TrustIgnore {
			k.Tasks = append(k.Tasks, t)
			return nil
		}
		why := "it was never validated"
		if c := certs[t.ID]; c != nil {
			stale, err := c.Stale(t)
			if err == nil && stale == "" {
				stale, err = c.otherImage(digest)
			}
			if err != nil {
				return err
			}
			if stale == "" {
				k.take(t, c)
				return nil
			}
			why = "its certificate is stale: " + stale
		}
		if k.Uncertified++; k.Uncertified == 1 {
			first = fmt.Sprintf("%s: %s", t.ID, why)
		}
		k.Tasks = append(k.Tasks, t)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case trust == TrustRequire && k.Uncertified > 0:
		return nil, milepost.E(op, milepost.KindConflict, "%s: %d tasks have no valid certificate, the first is %s; run milepost tasks validate %s, or set tasks.certificates to use or ignore",
			set, k.Uncertified, first, set)
	case len(k.Tasks) == 0:
		return nil, milepost.E(op, milepost.KindConflict, "%s: none of %d tasks is fit for use, the first is %s: %s; see milepost tasks show %s, or set tasks.certificates to ignore",
			set, len(k.Unfit), k.Unfit[0].Task, k.Unfit[0].Reason, set)
	}
	return k, nil
}

// otherImage says that the image is not the one that was validated, or "".
func (c *Certificate) otherImage(digest func(string) (string, error)) (string, error) {
	if digest == nil || c.Digest == "" {
		return "", nil
	}
	now, err := digest(c.Image)
	if err != nil || now == c.Digest || now == "" {
		return "", err
	}
	return fmt.Sprintf("image %s is now %s, not %s", c.Image, now, c.Digest), nil
}

// take takes or leaves a task with a valid certificate.
func (k *Taken) take(t *milepost.Task, c *Certificate) {
	if !c.OK(false) {
		k.Unfit = append(k.Unfit, Problem{t.ID, c.Reason()})
		return
	}
	if flaky := c.FlakyTests(); len(flaky) > 0 {
		t.Flaky, k.Flaky[t.ID] = flaky, flaky
	}
	k.Tasks = append(k.Tasks, t)
}
