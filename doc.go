// Package milepost holds the vocabulary that every other package speaks: tasks, episodes, steps, probes,
// test reports and credit, and the closed set of error kinds. It does no I/O and imports nothing of Milepost.
//
// The way of the data, one direction, no back-calls:
//
//	Task ─▶ group of N episodes ─▶ agent loop (rollout) ⇄ sandbox (env)
//	                                   │ each action that changed the repository
//	                                   ▼
//	                              NATS JetStream ─▶ shadow workers ─▶ Probe
//	Episode + Probe ─▶ credit ─▶ batch ─▶ trainer_bridge ─▶ PyTorch update ─▶ new weights ─▶ vLLM ─▶ …
//
// A new kind of value that travels between packages is added here, one subject per file; behaviour is not.
package milepost
