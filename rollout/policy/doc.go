// Package policy holds the models that sample from real endpoints; they implement [rollout.Model].
//
//   - token.go, conversation.go: the token-exact model that training uses, over a pool of vLLM servers
//   - template.go: what a chat template puts between turns, derived from the server and checked
//   - sequence.go: the growing training sequence of one conversation
//   - pool.go, endpoint.go, clock.go: the pool of endpoints with its invariants, one endpoint and its circuit, time
//   - membership.go, gate.go, pick.go, request.go, health.go: who is in the pool and mirrors of it; what of a push the pool
//     knows and which answers may leave; who is placed where; attempts; health checks
//   - chat.go, chathttp.go: any OpenAI-compatible chat endpoint, for evaluation and demonstrations
//   - toolprompt.go: tools described in the system message, for templates that do not render them
//
// A new kind of endpoint is a new file with a type that implements rollout.Model. Scripted experts are in
// benchmarks/expert.
package policy
