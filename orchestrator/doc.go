// Package orchestrator is the run: a pure state machine (events in, commands out), the thin runner that carries the
// commands out through interfaces declared here, the run folder, and the numbers derived from it.
//
// The machine ([Machine]) does no I/O and reads no clock. Every event is journaled and synced before the machine sees
// it, so a resumed run is the same machine fed with the same events; whatever command is then outstanding is carried
// out (again). schedule.mode says whether rollouts stop for an update (sync) or go on beside it (async.go). Sandbox, HTTP
// and process code live elsewhere and are wired by cmd/milepost.
//
// A new phase of a run is a new file beside phase_*.go with its transition, its event and its golden scenario in
// testdata/scenarios; a new number for people is a line in metrics.go.
package orchestrator
