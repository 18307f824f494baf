// Package rollout runs episodes: model call, tool call, observation, until the agent submits or a limit stops it.
//
//   - model.go: the interfaces a policy implements (token-exact and chat models live in rollout/policy, scripted
//     experts in benchmarks/expert)
//   - runner.go and loop.go: the loop itself
//   - rollout/tools: the tools, one file each; a new tool goes there
//   - rollout/toolcall: the tool-call formats, one file each; a new format goes there
package rollout
