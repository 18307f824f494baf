// Package shadow verifies beside the agent: the agent loop publishes every change of the repository and goes on; workers
// rebuild the tree, prove its id, run the task's tests and publish what they saw; a barrier at the end of a batch collects
// the probes within a bound. NATS JetStream is the one messenger, embedded or external.
//
// The way of one probe:
//
//	Prober.Publish ─▶ book (cache? in flight?) ─▶ backlog ─▶ PROBES stream ─▶ worker slot ─▶ TestRunner
//	                                                                             │
//	Prober.Fill / Await / Baseline ◀─ book (fence, trust, cache file) ◀─ RESULTS stream
//
// JetStream is transport that may be lost: the truth is the run's journal. What a lost stream took with it is found by
// the reconciler and published again; a resumed run has a new epoch, purges what older epochs left and publishes again
// from Step.Delta what it still needs.
//
// Where things live, one subject per file:
//
//	config.go     every setting, its default and its check
//	server.go     the embedded server          connect.go   connections, credentials, TLS
//	server_log.go why a server did not start
//	streams.go    names of streams and subjects, and making them
//	epoch.go      how a start of a run takes it over from the one before
//	wire.go       the messages; a new field or message goes there, with a new version if old workers break (checksums, objects
//	              above the message size and the worker's side of bases are package internal/messages, shared with rollout/remote)
//	key.go        what makes two probes the same probe
//	trust.go      when a result is trusted, and continuity; the one place where that is decided
//	book.go       the state of all probes of a run, without I/O, clock or goroutine; a new rule of scheduling goes there
//	merge.go      which consecutive steps share a probe while the queue is behind
//	recheck.go    second runs of a sample of states, and the flaky tests they find
//	cache.go      the result cache's file; lines.go: the files in the run folder
//	stats.go      counters, times, and what "hidden" means
//	natstest/     NATS servers as sites run them, for tests
//	prober.go     the orchestrator's side: publishing (publish.go), receiving (receive.go), the barrier (barrier.go), modes (mode.go)
//	worker.go     the worker's side: slots and draining; one probe (job.go); bases for other machines (bases.go); requests set
//	              aside, their list and replay (dead.go)
//	list.go       who is there
//	stuck.go      a server that takes connections and stores nothing
//
// Faults are tested in chaos_test.go one by one, and as whole runs by the scenarios of chaos_scenarios_test.go (make chaos),
// which must end with the credits of an undisturbed run; a new kind of trouble is one more line of their table.
//
// The package knows no sandbox and no test format: it runs tests through [TestRunner], whose production form is package
// env/testrun.
package shadow
