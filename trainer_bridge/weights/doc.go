// Package weights brings new weights to the vLLM servers and proves that they took.
//
//   - weights.go: the Pusher interface and its report
//   - disk.go: the push from a directory that the servers can read
//   - canary.go: after a push, the server's logprobs against the trainer's
//
// Another way (vLLM's own weight transfer, LoRA adapters) is another file with another Pusher; the canary is common to
// all: it tests the effect, not the status code.
package weights
