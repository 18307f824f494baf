package shadow

import (
	"slices"
	"strconv"
	"time"

	"github.com/milepost-rl/milepost"
)

// phase is where a flight is.
type phase uint8

const (
	phaseBacklog phase = iota // accepted, not yet on the stream
	phaseSent                 // on the stream
	phaseRunning              // a worker said that it took it
	phaseWaiting              // failed; the next attempt is due at flight.due
)

// flight is one probe under way: everything that asks for the same key shares it.
type flight struct {
	key      string
	req      milepost.ProbeRequest // the first request for it
	print    *taskPrint
	phase    phase
	attempt  int       // of the last publication, from 1
	delivery int       // the highest known of that attempt, 0 before a worker took it
	seq      uint64    // of that attempt's message in the stream, 0 until acknowledged
	losses   int       // attempts that were lost in transport
	missing  int       // consecutive looks at the stream that did not find the message
	due      time.Time // phaseWaiting: when the next attempt is to be published
	started  time.Time // when the last delivery was taken; zero before
	waiters  []*entry
	group    []*entry // of waiters, the steps that are verified together, in order; nil or two and more (merge.go)
	replaces *flight  // whose steps this flight took over; its message is to be deleted
	recheck  bool     // a second run of a state, which is compared and never used (recheck.go)
}

// entry is one request, by its id.
type entry struct {
	id        string
	episode   string
	kind      milepost.ProbeKind
	tree      string
	tests     int
	published time.Time
	probe     *milepost.Probe // nil until final; never changed afterwards
	done      chan struct{}   // closed when probe is set
	flight    *flight         // nil once final
}

// book is the state of all probes of a run: a pure state machine. Messages and time go in, what to do comes out; it has
// no lock, clock, goroutine or I/O, so its owner serialises calls.
//
// Invariants:
//   - A key has at most one flight, and none while results has it.
//   - (attempt, delivery) of a key only grows, also over successive flights of the key; a result counts only if it carries
//     the current attempt and no smaller delivery than the highest known.
//   - An entry becomes final exactly once. Only trusted results enter results, and what is there is never replaced.
//   - A flight leaves flights when its result is final or nobody needs it; waiters of a flight are exactly the entries
//     whose flight it is. A result whose flight has left so can still answer later requests, never earlier ones.
//   - The steps of a merge group are consecutive, wait for one flight, and become final together.
type book struct {
	maxAttempts  int
	retryDelay   time.Duration
	waits        bool    // mode synchronous: an episode does not go on while its step is verified
	mergeMax     int     // steps verified together at most; below 2 none are
	mergeBehind  float64 // probes waiting for each slot beyond which the queue is behind
	slots        int     // of the workers heard of
	recheckShare float64 // of the states that are run twice

	entries  map[string]*entry
	episodes map[string][]string  // ids by episode
	ended    map[string]time.Time // when an episode published its verdict
	tails    map[string]*lastStep // by episode
	flights  map[string]*flight   // by key
	spent    map[string]spent     // keys whose last flight left without a trusted result
	results  map[string]cacheEntry
	rechecks int               // flights that are second runs
	flaky    map[[2]string]int // states on which a test's two runs differed, by task and test
	stats    Stats
}

// spent is what is kept of a flight that left without a trusted result.
type spent struct {
	attempt int // the last
	print   *taskPrint
	tree    string
}

func newBook(cfg ProberConfig, cached []cacheEntry) *book {
	b := &book{maxAttempts: cfg.MaxAttempts, retryDelay: cfg.RetryDelay, waits: cfg.Mode == ModeSynchronous, mergeMax: cfg.Merge,
		mergeBehind: cfg.MergeBehind, recheckShare: cfg.Recheck, entries: map[string]*entry{}, episodes: map[string][]string{},
		ended: map[string]time.Time{}, tails: map[string]*lastStep{}, flights: map[string]*flight{}, spent: map[string]spent{},
		results: map[string]cacheEntry{}, flaky: map[[2]string]int{}}
	for _, e := range cached {
		b.results[e.Key] = e
	}
	return b
}

// request takes a request and returns a new flight for the backlog, or nil where the cache or a probe under way answers
// it. A request whose id is known with the same tree is taken once; another tree replaces the older request. merge lets a
// step take over those before it (merge.go).
func (b *book) request(r milepost.ProbeRequest, print *taskPrint, merge bool, now time.Time) *flight {
	if old := b.entries[r.ID]; old != nil {
		if old.tree == r.Tree {
			return nil
		}
		b.drop(old)
	}
	b.stats.Published++
	e := &entry{id: r.ID, episode: r.Episode, kind: r.Kind, tree: r.Tree, tests: print.tests, published: now, done: make(chan struct{})}
	b.entries[r.ID] = e
	if r.Episode != "" {
		b.episodes[r.Episode] = append(b.episodes[r.Episode], r.ID)
		if r.Kind == milepost.ProbeVerdict {
			b.ended[r.Episode] = now
		}
	}
	before := b.follow(&r, e)
	key := print.key(r.Tree)
	if c, ok := b.results[key]; ok {
		if p := judge(e.tests, e.tree, c.result()); p.Trusted {
			b.stats.Cached++
			b.finish(e, p, true, now)
			return nil
		}
		delete(b.results, key) // not what belongs to this key: the file was tampered with
	}
	if f := b.flights[key]; f != nil {
		b.stats.Coalesced++
		f.waiters, e.flight = append(f.waiters, e), f
		return nil
	}
	f := &flight{key: key, req: r, print: print, attempt: b.spent[key].attempt + 1, waiters: []*entry{e}}
	if r.Tree == print.task.BaseTree {
		f.req.Kind, f.req.Delta = milepost.ProbeBaseline, nil // it is the baseline, whoever asks
	}
	b.flights[key], e.flight = f, f
	if merge {
		b.absorb(before, f)
	}
	return f
}

func (c cacheEntry) result() *wireResult {
	return &wireResult{Worker: c.Worker, Status: milepost.ProbeCompleted, Tree: c.Tree, Report: c.Report, Ran: c.Ran}
}

// current reports whether f is still the flight of its key at the attempt that somebody began to publish.
func (b *book) current(f *flight, attempt int) bool {
	return b.flights[f.key] == f && f.attempt == attempt && f.phase == phaseBacklog
}

// sent notes that attempt of f is in the stream as message seq.
func (b *book) sent(f *flight, attempt int, seq uint64) {
	b.stats.Sent++
	if b.flights[f.key] != f || f.attempt != attempt {
		return // its result was faster than the acknowledgement
	}
	f.seq, f.missing = seq, 0
	if f.phase == phaseBacklog {
		f.phase = phaseSent
	}
}

// started notes that a worker took a delivery of an attempt.
func (b *book) started(a address, now time.Time) {
	f := b.flights[a.Key]
	if f == nil || a.Attempt != f.attempt || a.Delivery <= f.delivery || f.phase == phaseWaiting {
		return
	}
	b.deliver(f, a.Delivery, now)
	f.phase = phaseRunning
}

// deliver notes the latest delivery of f; those before it were handed out in vain.
func (b *book) deliver(f *flight, delivery int, started time.Time) {
	b.stats.Redelivered += max(0, delivery-max(f.delivery, 1))
	f.delivery, f.started = delivery, started
}

// verdictOn is what became of a result.
type verdictOn struct {
	store   *cacheEntry   // to be written to the cache file
	retry   *flight       // waits for its next attempt, due at flight.due
	recheck *flight       // a second run, for the backlog
	differs *disagreement // to be written to the file of flaky tests
}

// result takes a worker's claim of this epoch.
func (b *book) result(r *wireResult, now time.Time) verdictOn {
	f := b.flights[r.Key]
	if f == nil {
		return b.unasked(r)
	}
	if r.Attempt != f.attempt || r.Delivery < f.delivery || f.phase == phaseWaiting {
		b.stats.Fenced++
		return verdictOn{}
	}
	if r.Delivery > f.delivery { // the notice of the start was lost or is behind
		b.deliver(f, r.Delivery, now.Add(-r.Ran))
	}
	if r.Status == milepost.ProbeInfra && r.Retry && b.failures(f) < b.maxAttempts {
		b.again(f, b.retryDelay<<min(b.failures(f)-1, 10), now)
		return verdictOn{retry: f}
	}
	return b.conclude(f, r, now)
}

// unasked takes a result whose flight has left. If that ended without a trusted result (it was withdrawn, replaced by a
// merge, or is a dead letter that was replayed), a trusted one answers later requests; it changes nothing that is final.
func (b *book) unasked(r *wireResult) verdictOn {
	s, ok := b.spent[r.Key]
	if ok && r.Attempt <= s.attempt {
		if p := judge(s.print.tests, s.tree, r); p.Trusted {
			b.stats.AfterBarrier++
			b.stats.RunTime += r.Ran
			return verdictOn{store: b.keep(r)}
		}
	}
	b.stats.Duplicates++
	return verdictOn{}
}

// keep makes a trusted result the answer to its key.
func (b *book) keep(r *wireResult) *cacheEntry {
	c := cacheEntry{V: fileVersion, Key: r.Key, Tree: r.Tree, Report: r.Report, Worker: r.Worker, Ran: r.Ran}
	b.results[r.Key] = c
	delete(b.spent, r.Key)
	return &c
}

// retire takes f out of the flights without a trusted result.
func (b *book) retire(f *flight) {
	delete(b.flights, f.key)
	b.spent[f.key] = spent{f.attempt, f.print, f.req.Tree}
}

// failures counts the attempts of f, the present one included, that were not lost in transport.
func (b *book) failures(f *flight) int { return f.attempt - b.spent[f.key].attempt - f.losses }

// again makes f wait for its next attempt.
func (b *book) again(f *flight, delay time.Duration, now time.Time) {
	b.stats.Retries++
	f.due = now.Add(delay)
	f.attempt++
	f.delivery, f.seq, f.missing, f.phase, f.started = 0, 0, 0, phaseWaiting, time.Time{}
}

// conclude makes r the end of f.
func (b *book) conclude(f *flight, r *wireResult, now time.Time) verdictOn {
	p := judge(f.print.tests, f.req.Tree, r)
	if f.recheck {
		delete(b.flights, f.key)
		b.stats.RunTime += r.Ran
		return verdictOn{differs: b.compare(f, &p)}
	}
	var out verdictOn
	if p.Trusted {
		delete(b.flights, f.key)
		r.Key = f.key
		out.store, out.recheck = b.keep(r), b.recheck(f)
	} else {
		b.retire(f)
	}
	b.stats.RunTime += r.Ran
	if len(f.waiters) == 0 {
		b.stats.AfterBarrier++
	}
	for _, e := range f.waiters {
		b.finish(e, p, false, now)
	}
	f.waiters = nil
	return out
}

// finish makes p final for e and counts it.
func (b *book) finish(e *entry, p milepost.Probe, cached bool, now time.Time) {
	p.ID, p.Cached, p.Total = e.id, cached, now.Sub(e.published)
	if f := e.flight; f != nil && !f.started.IsZero() {
		p.Queued = max(0, f.started.Sub(e.published))
	}
	if cached {
		p.Total = 0
	}
	if e.flight != nil {
		p.Merge = e.flight.mergeOf(e)
	}
	b.count(e, &p, now)
	b.end(e, &p)
}

// end makes p final for e.
func (b *book) end(e *entry, p *milepost.Probe) {
	e.probe, e.flight = p, nil
	close(e.done)
}

func (b *book) count(e *entry, p *milepost.Probe, now time.Time) {
	s := &b.stats
	switch {
	case p.Trusted:
		s.Trusted++
	default:
		s.Untrusted++
		if p.Continuity == milepost.ContinuityLost {
			s.Lost++
		}
	}
	switch p.Status {
	case milepost.ProbeTimeout, milepost.ProbeMemory:
		s.Timeouts++
	case milepost.ProbeInfra:
		s.Infra++
	case milepost.ProbeCancelled:
		s.Cancelled++
		return
	}
	if p.Cached {
		return
	}
	s.QueueTime += p.Queued
	switch e.kind {
	case milepost.ProbeStep:
		s.StepTime += p.Total
		overlap := p.Total
		if b.waits {
			overlap = 0
		} else if end, ok := b.ended[e.episode]; ok {
			overlap = min(overlap, max(0, end.Sub(e.published)))
		}
		s.OverlapTime += overlap
	case milepost.ProbeVerdict:
		s.VerdictTime += p.Total
	}
}

// maxLosses is how often the request or the result of one probe may be lost. It is far above maxAttempts: a loss says
// nothing about the probe, and costs no more than its repetition.
const maxLosses = 20

// lost takes the sequence numbers that the stream no longer holds into account: a flight whose message is missing in two
// looks in a row gets another attempt, or fails for good. held says whether the stream holds a message.
func (b *book) lost(held func(seq uint64) bool, now time.Time) (retries []*flight) {
	for _, f := range b.flights {
		if f.seq == 0 || f.phase != phaseSent && f.phase != phaseRunning {
			continue
		}
		if held(f.seq) {
			f.missing = 0
			continue
		}
		if f.missing++; f.missing < 2 {
			continue
		}
		b.stats.LostMessages++
		if f.losses++; f.losses < maxLosses {
			b.again(f, b.retryDelay, now)
			retries = append(retries, f)
			continue
		}
		b.conclude(f, &wireResult{address: address{Attempt: f.attempt}, Status: milepost.ProbeInfra,
			Reason: "the request or its result was lost in transport " + strconv.Itoa(f.losses) + " times"}, now)
	}
	return retries
}

// due moves the flights whose time has come back to the backlog and returns them.
func (b *book) due(now time.Time) (ready []*flight) {
	for _, f := range b.flights {
		if f.phase == phaseWaiting && !now.Before(f.due) {
			f.phase = phaseBacklog
			ready = append(ready, f)
		}
	}
	return ready
}

// drop forgets an entry; one that is not final becomes cancelled for whoever waits for it.
func (b *book) drop(e *entry) (unwanted *flight) {
	delete(b.entries, e.id)
	f := e.flight
	if f == nil {
		return nil
	}
	b.leaveGroup(f, e)
	f.waiters = slices.DeleteFunc(f.waiters, func(w *entry) bool { return w == e })
	b.end(e, &milepost.Probe{ID: e.id, Status: milepost.ProbeCancelled, Continuity: milepost.ContinuityKept, Reason: "nobody waits for it any more"})
	if len(f.waiters) > 0 || f.phase == phaseRunning {
		return nil
	}
	b.retire(f)
	return f
}

// release forgets everything about an episode and returns the flights that nobody waits for and no worker has begun:
// their messages can be deleted.
func (b *book) release(episode string) (unwanted []*flight) {
	for _, id := range b.episodes[episode] {
		if e := b.entries[id]; e != nil && e.episode == episode {
			if f := b.drop(e); f != nil {
				unwanted = append(unwanted, f)
			}
		}
	}
	delete(b.episodes, episode)
	delete(b.ended, episode)
	delete(b.tails, episode)
	return unwanted
}
