package shadow

import "time"

// Stats counts what happened to probes since the prober started; [Stats.Sub] of two snapshots is a batch. Backlog,
// InFlight and Workers are states, not counts. Times are the prober's clock.
//
// What is hidden. A step's probe is verified from its publication to its result: that is its latency, and StepTime is
// the sum of it over steps that were not answered from the cache. While its episode went on (until the episode published
// its verdict request) the latency cost nothing: the sum of that part is OverlapTime. What verification cost the run is
// the time in which the barrier stood and waited, BarrierWait, in wall-clock time. So
//
//	HiddenShare  = 1 - BarrierWait/(StepTime+VerdictTime)   what the run never noticed, by any cause
//	OverlapShare = OverlapTime/StepTime                     what the episode's own work alone covered
//
// HiddenShare compares wall-clock time with a sum of latencies that ran in parallel, so it flatters a wide batch;
// OverlapShare does not, and RunTime (the work itself) is beside them. Baselines, cached and late probes
// are in none of these sums, and neither are second runs but for RunTime.
type Stats struct {
	Published   int `json:"published"`   // requests taken from Publish, Baseline and Fill
	Republished int `json:"republished"` // of them, by Fill, because this epoch had not seen them
	Cached      int `json:"cached"`      // answered from the cache at once
	Coalesced   int `json:"coalesced"`   // joined a probe of the same key that was under way
	Merged      int `json:"merged"`      // probes saved: the step is verified together with the one behind it
	Sent        int `json:"sent"`        // messages on the stream, retries included

	Trusted   int `json:"trusted"`   // final and trusted
	Untrusted int `json:"untrusted"` // final and not trusted, the next five included
	Timeouts  int `json:"timeouts"`  // tests ran past time or memory
	Infra     int `json:"infra"`     // infrastructure failure after the last attempt
	Lost      int `json:"lost"`      // continuity lost
	Late      int `json:"late"`      // handed out as late by a barrier
	Cancelled int `json:"cancelled"` // the episode was cancelled

	Retries       int `json:"retries"`        // further attempts after an infrastructure failure or a loss
	LostMessages  int `json:"lost_messages"`  // of them, because the request vanished from the stream
	Redelivered   int `json:"redelivered"`    // handed out again: the worker before fell silent or gave it back
	Fenced        int `json:"fenced"`         // results of an attempt or delivery that had been replaced
	StaleEpoch    int `json:"stale_epoch"`    // results of an older epoch
	Duplicates    int `json:"duplicates"`     // results of probes that were final already
	Corrupt       int `json:"corrupt"`        // messages that could not be read
	AfterBarrier  int `json:"after_barrier"`  // results that came when nobody waited any more; if trusted, the cache has them
	PublishErrors int `json:"publish_errors"` // failed tries to reach the stream
	CacheErrors   int `json:"cache_errors"`   // failed writes of the files in the run folder: results, flaky tests

	Rechecked     int `json:"rechecked"`      // states of the sample that were run twice, both runs trusted
	Disagreed     int `json:"disagreed"`      // of them, states on which some test gave two answers
	RecheckFailed int `json:"recheck_failed"` // second runs that were not trusted: nothing to compare

	Backlog  int `json:"backlog"`   // accepted, not yet on the stream
	InFlight int `json:"in_flight"` // probes without a result
	Workers  int `json:"workers"`   // heard of within the last 15 s

	QueueTime   time.Duration `json:"queue_time"`   // publication to a worker's taking it
	RunTime     time.Duration `json:"run_time"`     // tree rebuild and tests
	StepTime    time.Duration `json:"step_time"`    // publication to result, steps
	VerdictTime time.Duration `json:"verdict_time"` // publication to result, verdicts
	OverlapTime time.Duration `json:"overlap_time"` // part of StepTime in which the episode itself went on
	BarrierWait time.Duration `json:"barrier_wait"` // wall-clock time spent waiting in Fill; in mode synchronous also by each step
}

// Sub returns what happened between before and s; states are those of s.
func (s Stats) Sub(before Stats) Stats {
	for _, c := range []struct{ a, b *int }{
		{&s.Published, &before.Published}, {&s.Republished, &before.Republished}, {&s.Cached, &before.Cached},
		{&s.Coalesced, &before.Coalesced}, {&s.Sent, &before.Sent}, {&s.Trusted, &before.Trusted},
		{&s.Untrusted, &before.Untrusted}, {&s.Timeouts, &before.Timeouts}, {&s.Infra, &before.Infra}, {&s.Lost, &before.Lost},
		{&s.Late, &before.Late}, {&s.Cancelled, &before.Cancelled}, {&s.Retries, &before.Retries},
		{&s.LostMessages, &before.LostMessages}, {&s.Redelivered, &before.Redelivered}, {&s.Fenced, &before.Fenced},
		{&s.StaleEpoch, &before.StaleEpoch}, {&s.Duplicates, &before.Duplicates}, {&s.Corrupt, &before.Corrupt},
		{&s.Merged, &before.Merged}, {&s.Rechecked, &before.Rechecked}, {&s.Disagreed, &before.Disagreed},
		{&s.RecheckFailed, &before.RecheckFailed}, {&s.AfterBarrier, &before.AfterBarrier}, {&s.PublishErrors, &before.PublishErrors}, {&s.CacheErrors, &before.CacheErrors},
	} {
		*c.a -= *c.b
	}
	s.QueueTime -= before.QueueTime
	s.RunTime -= before.RunTime
	s.StepTime -= before.StepTime
	s.VerdictTime -= before.VerdictTime
	s.OverlapTime -= before.OverlapTime
	s.BarrierWait -= before.BarrierWait
	return s
}

// HiddenShare is the share of verification time that no barrier waited for, within 0..1; 1 where nothing was verified.
func (s Stats) HiddenShare() float64 {
	total := s.StepTime + s.VerdictTime
	if total <= 0 {
		return 1
	}
	return max(0, 1-float64(s.BarrierWait)/float64(total))
}

// FlakyShare is the share of the states run twice on which some test gave two answers; 0 where none was.
func (s Stats) FlakyShare() float64 {
	if s.Rechecked == 0 {
		return 0
	}
	return float64(s.Disagreed) / float64(s.Rechecked)
}

// OverlapShare is the share of step verification that ran beside the episode's own work, within 0..1; 1 where no step was
// verified.
func (s Stats) OverlapShare() float64 {
	if s.StepTime <= 0 {
		return 1
	}
	return float64(s.OverlapTime) / float64(s.StepTime)
}
