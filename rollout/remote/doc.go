// Package remote runs agent loops on other machines: the orchestrator hands episodes out over NATS, workers with free slots
// take them and send back what came of them.
//
//	orchestrator ─ Dispatcher.Run ─▶ ledger ◀── ask ── Worker (a free slot)
//	                                   │ ── order ──▶  rollout.Runner, policy, sandbox
//	  shadow.Prober ◀── step ──────────┼──────────────   │ each step that changed the repository, at once
//	  Run returns   ◀── result ────────┘◀─────────────   ▼ the episode
//	  policy.Pool ─ Snapshot ── notice (each second, and at each change) ──▶ policy.Pool.Follow
//
// The run's journal stays the only truth. An episode is one call of Dispatcher.Run, which returns once; who holds it, by
// which lease, and whether an answer still counts is decided in one place, the ledger in the orchestrator's memory, and
// nothing of it is kept by the NATS server: what a killed orchestrator had handed out, its next epoch hands out again, and
// workers let go of the older epoch's as soon as they hear the newer one. So all messages are core NATS; every one that
// matters is answered by the orchestrator, and sent again until it was.
//
// A worker that dies gives its episodes back by silence: after Config.Lease another one gets them, under the same id, with
// the next attempt. Nothing ended, so nothing is journaled. An answer counts if it carries the latest attempt. An episode
// whose workers fell silent Config.MaxLosses times ends as infra_error instead, which the run retries and bounds by its own rules.
//
// Probes are asked for by the worker and published by the orchestrator: a step's request travels with the bytes that it
// adds, and the prober there merges, caches, cancels and publishes again after a loss, as it does for local episodes.
//
// Where things live:
//
//	config.go      every setting, its default and its check
//	wire.go        subjects and messages; a new field or message goes there, with a new version if older workers break
//	ledger.go      who holds which episode: a state machine without I/O; a new rule of handing out goes there
//	parcel.go      bodies above the message size
//	dispatcher.go  the orchestrator's side: Run, notices, leases; receive.go: what workers send; metrics.go: counters
//	worker.go      the worker's side: slots, draining; hear.go: what it hears of runs, heartbeats; episode.go: one episode;
//	               probe.go: its probes
//	site.go        what a worker has of a run: its policy and its agent loop
//	list.go        who is there
package remote
