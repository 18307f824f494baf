// Package weights brings new weights to the vLLM servers and proves that they took.
//
//   - weights.go: what a push is given and reports; the interfaces Method and Gate
//   - config.go: the configuration of all methods
//   - pusher.go: a push, the same for every method: each replica alone is paused, updated, named, resumed and sung to;
//     pushed again or quarantined; and what happens when none is left
//   - canary.go: after a push, the server's logprobs against the trainer's
//   - disk.go, transfer.go, lora.go: the methods
//
// Another way to bring weights is another Method in a file of its own and a line in Methods; the canary is common to
// all: it tests the effect, not the status code.
package weights
