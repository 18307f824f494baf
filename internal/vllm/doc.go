// Package vllm is a small HTTP client for one vLLM server (0.32): token ids in and out, rendering and tokenizing on the
// server, and the development routes that pause it, reload its weights and name their version.
//
//   - client.go: the client, one request, errors
//   - generate.go: sampling, by /inference/v1/generate and by /v1/completions
//   - routes.go: the experts that a mixture chose for each token
//   - render.go: messages to token ids, text to token ids and back
//   - weights.go: pause, reload, prefix cache, version, resume; transfer.go: native weight transfer
//   - lora.go: adapters: loading, naming one in requests, the flags of a server that takes them
//   - metrics.go: health and /metrics
//
// It speaks to one server, never retries and keeps no state: pooling, retries and circuits are rollout/policy's. A new
// route is a new method in the file of its subject.
//
// Development routes (/pause, /collective_rpc, …), /tokenize and /metrics lie outside vLLM's --api-key: bind servers to
// private addresses.
package vllm
