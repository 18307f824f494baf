// Package rollout runs episodes: model call, tool call, observation, until the agent submits or a limit stops it.
//
//	model.go       the interfaces a policy implements (token-exact and chat models live in rollout/policy, scripted experts in
//	               benchmarks/expert)
//	config.go      the configuration: limits, and what follows
//	scaffold.go    scaffolds: whose tools and prompts an agent works with; prompts/ holds the prompts
//	condenser.go   what of a long history a policy still sees
//	runner.go      New and Run: what an episode needs and how it is asked for
//	loop.go        the loop itself, and what ends it
//	act.go         one turn: finding the call, carrying it out
//	policing.go    what an action may not change, and the roll back
//	repository.go  the repository as trees: taking one, comparing, restoring
//	finish.go      status, patch and verdict request
//	tools/         the tools, in kits; a new tool or kit goes there
//	toolcall/      the tool-call formats, one file each; a new format goes there
//
// A new scaffold is a kit in tools/ and its prompts in prompts/; a new condenser is a kind in condenser.go. A new limit is a field of Config and a case of spent in loop.go; a new rule of policy is a case of settle in policing.go
// and a Violation of the root package.
package rollout
