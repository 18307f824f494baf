package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/orchestrator"
)

// progress tells a person where long work is: on a terminal one line that changes, elsewhere plain lines now and then.
// It is safe for concurrent use.
type progress struct {
	mu      sync.Mutex
	out     io.Writer
	live    bool // out is a terminal
	started time.Time
	shown   bool      // a live line stands on the terminal
	last    time.Time // of the last progress line
	metrics map[string]float64
}

func newProgress(out io.Writer) *progress {
	live := false
	if f, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		live = err == nil
	}
	return &progress{out: out, live: live, started: time.Now(), metrics: map[string]float64{}}
}

// line prints a line that stays, with the time since the start.
func (p *progress) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(fmt.Sprintf(format, args...))
}

func (p *progress) print(text string) {
	p.clear()
	stamp := clock(time.Since(p.started))
	for l := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(p.out, "%s  %s\n", stamp, l)
		stamp = strings.Repeat(" ", len(stamp))
	}
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}

// count shows that done of total units of what are finished after since, with the rate and the time left.
func (p *progress) count(what string, done, total int, since time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	every := 10 * time.Second
	if p.live {
		every = 100 * time.Millisecond
	}
	if time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	text := fmt.Sprintf("%s: %d of %d", what, done, total)
	if since > 0 && done > 0 {
		rate := float64(done) / since.Seconds()
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		text += fmt.Sprintf(", %.1f a second, %s left", rate, clock(left))
	}
	if !p.live {
		p.print(text)
		return
	}
	p.clear()
	fmt.Fprintf(p.out, "%s  %s", clock(time.Since(p.started)), text)
	p.shown = true
}

// clock writes a duration as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// report shows the state of a run; it is orchestrator.Deps.Report.
func (p *progress) report(s orchestrator.Status) {
	if s.Line == "" {
		if s.Total > 0 {
			what, since := string(s.Phase), s.Since
			switch s.Phase {
			case orchestrator.PhaseRolling:
				what = fmt.Sprintf("update %d of %d, rolling out", s.Update, s.MaxUpdates)
			case orchestrator.PhaseAsync: // episodes come and go: there is no rate and no end of a batch
				what, since = fmt.Sprintf("update %d of %d, rolling out beside it", s.Update, s.MaxUpdates), 0
			}
			p.count(what, s.Done, s.Total, since)
		}
		return
	}
	first, rest, more := strings.Cut(s.Line, "\n")
	switch first {
	case "batch":
		p.keep(s.Metrics)
		if more {
			p.line("%s", rest)
		}
	case "update":
		p.keep(s.Metrics)
		p.line("%s", p.updateLine(s))
	default:
		p.line("%s", s.Line)
	}
}

func (p *progress) keep(m map[string]float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.metrics, m)
}

func (p *progress) updateLine(s orchestrator.Status) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.metrics
	text := fmt.Sprintf("update %d of %d: resolved %.3f, reward %.3f, entropy %.3f, gap to sampler %.1e, invalid calls %.3f, %.1f turns; %.1f s (rollout %.1f, probes %.1f, update %.1f)",
		s.Update, s.MaxUpdates, m["resolved_rate"], m["reward_mean"], m["entropy"], m["logprob_gap_mean"], m["invalid_calls"], m["turns_mean"],
		m["time_rollout_s"]+m["time_barrier_s"]+m["time_update_s"], m["time_rollout_s"], m["time_barrier_s"], m["time_update_s"])
	if n := m["groups_sampled"]; n > 0 {
		text += fmt.Sprintf("; %g groups sampled, %g dropped, %g cancelled; %g tasks retired", n, m["groups_rejected"], m["groups_cancelled"], m["tasks_retired"])
	}
	if age, async := m["staleness_mean"]; async {
		text += fmt.Sprintf("; staleness %.2f, at most %g; %g groups too old, %.3f of the tokens masked", age, m["staleness_max"], m["groups_stale"], m["tokens_stale"])
	}
	for _, w := range orchestrator.Health(m) {
		text += "\nwarning: " + w
	}
	p.metrics = map[string]float64{}
	return text
}
