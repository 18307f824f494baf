package shadow

import (
	"context"
	"time"

	"github.com/milepost-rl/milepost"
)

// Mode says how step probes relate to the agent's own work; the last two are there to be compared with.
type Mode string

// The modes.
const (
	ModeShadow      Mode = "shadow"      // the agent goes on while its change is verified
	ModeSynchronous Mode = "synchronous" // the agent waits for each probe
	ModeOff         Mode = "off"         // steps are not probed; baselines and verdicts are
)

func (m Mode) valid() bool { return m == ModeShadow || m == ModeSynchronous || m == ModeOff }

// SyncProber makes every step wait for its probe: what a loop without shadow workers does. The verdict of an episode is
// not waited for, as no agent is left to wait. The waiting counts as BarrierWait, and nothing as OverlapTime.
type SyncProber struct {
	p     *Prober
	bound time.Duration
}

// NewSync wraps p; bound is the most that one step waits.
func NewSync(p *Prober, bound time.Duration) *SyncProber { return &SyncProber{p, bound} }

// Publish publishes r and, for a step, returns once its probe is final or the bound has passed (which is no error: the
// barrier decides on late probes). Errors: as [Prober.Publish], and KindCanceled.
func (s *SyncProber) Publish(ctx context.Context, r milepost.ProbeRequest) error {
	began := s.p.opts.now() // the agent waits from here on; a probe may be done before Publish returns
	if err := s.p.Publish(ctx, r); err != nil || r.Kind != milepost.ProbeStep {
		return err
	}
	s.p.await(ctx, []string{r.ID}, s.bound)
	s.p.mu.Lock()
	s.p.book.stats.BarrierWait += s.p.opts.now().Sub(began)
	s.p.mu.Unlock()
	return milepost.Wrap("shadow: publish", milepost.KindCanceled, ctx.Err())
}
