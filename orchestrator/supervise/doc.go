// Package supervise starts, watches, stops and adopts the long-lived processes of a run: the vLLM servers and the
// trainer.
//
//   - process.go: one process: start, readiness, exit, stop of its whole group
//   - identity.go: what is journaled of a process, and how a later run finds it again: adoption and reaping
//   - service.go: a process kept up: restarts with back-off
//   - proc.go: reading /proc
//   - vllm.go: the vLLM server as a process
//
// Every process leads its own process group, and signals go to the group: vLLM's engine and workers die with it. No
// process is ever found by its name. The kernel's parent-death signal is not used: after kill -9 of the orchestrator the
// servers stay up, and the resumed run adopts them by the journaled identity (a start takes 85 to 100 s) or reaps them.
// Output goes straight to a log file, so a server outlives its reader.
//
// A new kind of process is a new file like vllm.go. Linux only: it reads /proc.
package supervise
