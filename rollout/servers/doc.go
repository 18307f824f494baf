// Package servers lets vLLM servers on other machines join a run, and leave it, over NATS.
//
//	worker serve ── beat (each second or two) ──▶ every run that listens
//	             ◀── claim: this run, or not any more; repeated, or the claim lapses ── Hub of one run ─▶ Members
//
// A server holds one run's weights, so it is one run's at a time: the first that claims it, or the one that it was told to
// serve. What follows, weights, canary, sampling, goes over HTTP between the run and the server and is not this package's:
// Members, the run's side, is told who joins, who leaves and who is gone.
//
// Nothing is kept by the NATS server. A run that dies stops repeating its claims, and its servers are free after Config.Lease;
// a server that dies stops beating, and is gone for the run after the same time. A run that is resumed has a later epoch,
// which takes the claim over.
//
//	config.go  settings      wire.go  subjects and messages; a new field goes there, with a new version if old ones break
//	worker.go  the server's side: beats, claims, draining      hub.go  the run's side      list.go  who is there
package servers
