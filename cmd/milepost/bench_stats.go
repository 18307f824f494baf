package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/milepost-rl/milepost/shadow"
)

// benchVariant is one way of verifying the episodes.
type benchVariant struct {
	Name    string      `json:"name"`
	Mode    shadow.Mode `json:"mode"`
	Workers int         `json:"workers"`
}

// The variants that every round has. No probing is measured twice a round: what the two differ by is noise, and their
// mean is what the others of the round are compared with.
const (
	variantOff   = "no probing"
	variantAgain = "no probing again"
	variantSync  = "synchronous"
)

// variantsOf lists the variants in the order of the table. All but the smaller numbers of shadow workers have as many
// workers as the largest number, so that they differ in nothing else.
func variantsOf(workers []int) []benchVariant {
	most := slices.Max(workers)
	out := []benchVariant{{variantOff, shadow.ModeOff, most}, {variantAgain, shadow.ModeOff, most}, {variantSync, shadow.ModeSynchronous, most}}
	for _, w := range workers {
		out = append(out, benchVariant{shadowName(w), shadow.ModeShadow, w})
	}
	return out
}

func shadowName(workers int) string {
	if workers == 1 {
		return "shadow, 1 worker"
	}
	return fmt.Sprintf("shadow, %d workers", workers)
}

// orderOf is the order in which round n runs the variants: the two without probing apart, every other round backwards, so
// that a machine that grows slower or faster favours none. Without sweep the smaller numbers of workers are left out.
func orderOf(variants []benchVariant, n int, sweep bool) []benchVariant {
	most := len(variants) - 1
	out := []benchVariant{variants[0], variants[most], variants[1], variants[2]}
	if sweep {
		out = append(out, variants[3:most]...)
	}
	if n%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// benchBatch is what one batch took.
type benchBatch struct {
	Episodes    float64      `json:"episodes_s"` // seconds until the last episode ended
	Barrier     float64      `json:"barrier_s"`  // seconds until the barrier closed: all probes in the episodes
	ProberBytes uint64       `json:"prober_bytes"`
	WorkerBytes uint64       `json:"worker_bytes"`
	Stats       shadow.Stats `json:"stats"`
}

// benchRound is one batch of each variant, by name.
type benchRound map[string]benchBatch

// offEpisodes and offBarrier are the round's times without probing.
func (r benchRound) offEpisodes() float64 {
	return (r[variantOff].Episodes + r[variantAgain].Episodes) / 2
}
func (r benchRound) offBarrier() float64 {
	return (r[variantOff].Barrier + r[variantAgain].Barrier) / 2
}

// hidden is the share of what synchronous probing adds to the time until the barrier closes that b does not add. It means
// something where tellable holds.
func (r benchRound) hidden(b benchBatch) float64 {
	return 1 - (b.Barrier-r.offBarrier())/(r[variantSync].Barrier-r.offBarrier())
}

// tellable reports whether synchronous probing adds more than three times what two batches without probing differ by, in
// the median over rounds. Otherwise what is hidden of it cannot be told from noise.
func tellable(rounds []benchRound) bool {
	var added, noise []float64
	for _, r := range rounds {
		added = append(added, r[variantSync].Barrier-r.offBarrier())
		noise = append(noise, math.Abs(r[variantAgain].Barrier-r[variantOff].Barrier))
	}
	return spreadOf(added).Median > 3*spreadOf(noise).Median
}

// spread is the median of one figure over the rounds (of an even number, the mean of the two in the middle), with its smallest and largest value.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return spread{(s[(n-1)/2] + s[n/2]) / 2, s[0], s[n-1]}
}

// benchSection are the figures of one kind of tests.
type benchSection struct {
	Tests  string       `json:"tests"`
	Rows   []benchRow   `json:"rows"`
	Rounds []benchRound `json:"rounds"`
}

// benchRow sums one variant up. Ratios and shares are taken within a round, where the machine was the same, and then the
// median over rounds; counts are per batch, times are means per probe. docs/bench.md explains each.
type benchRow struct {
	benchVariant
	Batches       int     `json:"batches"`
	Episodes      spread  `json:"episodes_s"`
	Barrier       spread  `json:"barrier_s"`
	EpisodesRatio spread  `json:"episodes_ratio"`   // to no probing
	BarrierRatio  spread  `json:"barrier_ratio"`    // to no probing
	Hidden        *spread `json:"hidden,omitempty"` // of what synchronous probing adds; nil where that is too little to tell

	// From shadow.Stats, over all batches of the variant. The shares are nil where steps are not probed.
	HiddenShare  *float64 `json:"hidden_share,omitempty"`  // 1 - barrier wait / sum of latencies
	OverlapShare *float64 `json:"overlap_share,omitempty"` // latency of steps within their episode's life
	Probes       float64  `json:"probes"`                  // answered in a batch
	Runs         float64  `json:"runs"`                    // of them by running tests; the rest from the cache or together with another
	RunsPerS     float64  `json:"runs_per_s"`              // until the barrier closed
	QueueMS      float64  `json:"queue_ms"`                // from publication to a worker's taking it, per probe not cached
	RunMS        float64  `json:"run_ms"`                  // tree rebuild and tests, per run
	TrustedShare float64  `json:"trusted_share"`           // of probes
	Late         int      `json:"late"`                    // all batches
	WireProber   float64  `json:"wire_prober"`             // bytes over the orchestrator's connection, both ways, per run
	WireWorker   float64  `json:"wire_worker"`             // the same over all workers' connections
}

// summariseBench makes the table of one kind of tests.
func summariseBench(kind string, variants []benchVariant, rounds []benchRound) benchSection {
	out := benchSection{Tests: kind, Rounds: rounds}
	for _, v := range variants {
		if row, ok := rowOf(v, rounds); ok {
			out.Rows = append(out.Rows, row)
		}
	}
	return out
}

// rowOf is false where no round ran the variant.
func rowOf(v benchVariant, rounds []benchRound) (benchRow, bool) {
	row := benchRow{benchVariant: v}
	var episodes, barrier, episodesRatio, barrierRatio, hidden []float64
	var sum benchBatch
	for _, r := range rounds {
		b, ok := r[v.Name]
		if !ok {
			continue
		}
		row.Batches++
		episodes, barrier = append(episodes, b.Episodes), append(barrier, b.Barrier)
		// The two without probing are compared with each other, the rest with their mean.
		baseEpisodes, baseBarrier := r.offEpisodes(), r.offBarrier()
		if v.Mode == shadow.ModeOff {
			baseEpisodes, baseBarrier = r[variantOff].Episodes, r[variantOff].Barrier
		}
		episodesRatio, barrierRatio = append(episodesRatio, b.Episodes/baseEpisodes), append(barrierRatio, b.Barrier/baseBarrier)
		hidden = append(hidden, r.hidden(b))
		sum = sum.plus(b)
	}
	if row.Batches == 0 {
		return row, false
	}
	row.Episodes, row.Barrier = spreadOf(episodes), spreadOf(barrier)
	row.EpisodesRatio, row.BarrierRatio = spreadOf(episodesRatio), spreadOf(barrierRatio)
	if v.Mode == shadow.ModeShadow && tellable(rounds) {
		h := spreadOf(hidden)
		row.Hidden = &h
	}
	row.count(sum)
	return row, true
}

// count fills in what is taken over all batches together.
func (row *benchRow) count(sum benchBatch) {
	s, n := sum.Stats, float64(row.Batches)
	answered := s.Trusted + s.Untrusted
	if row.Mode != shadow.ModeOff {
		hidden, overlap := s.HiddenShare(), s.OverlapShare()
		row.HiddenShare, row.OverlapShare = &hidden, &overlap
	}
	row.Probes, row.Runs = float64(answered)/n, float64(s.Sent)/n
	row.RunsPerS = float64(s.Sent) / sum.Barrier
	row.QueueMS = per(s.QueueTime.Seconds()*1000, answered-s.Cached)
	row.RunMS = per(s.RunTime.Seconds()*1000, s.Sent)
	row.TrustedShare = per(float64(s.Trusted), answered)
	row.Late = s.Late
	row.WireProber, row.WireWorker = per(float64(sum.ProberBytes), s.Sent), per(float64(sum.WorkerBytes), s.Sent)
}

// per is a/n, 0 where nothing was counted.
func per(a float64, n int) float64 {
	if n == 0 {
		return 0
	}
	return a / float64(n)
}

// plus adds what rows count.
func (b benchBatch) plus(o benchBatch) benchBatch {
	b.Barrier += o.Barrier
	b.ProberBytes += o.ProberBytes
	b.WorkerBytes += o.WorkerBytes
	s, t := &b.Stats, o.Stats
	s.Sent += t.Sent
	s.Cached += t.Cached
	s.Trusted += t.Trusted
	s.Untrusted += t.Untrusted
	s.Late += t.Late
	s.QueueTime += t.QueueTime
	s.RunTime += t.RunTime
	s.StepTime += t.StepTime
	s.VerdictTime += t.VerdictTime
	s.OverlapTime += t.OverlapTime
	s.BarrierWait += t.BarrierWait
	return b
}
