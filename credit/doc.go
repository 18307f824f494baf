// Package credit turns episodes and their probes into one advantage per step. It is pure functions on plain values of
// the root package: no clock, no I/O, no goroutine, no randomness, and no number that is not finite leaves it.
//
// The rules, one file each, with its source and how it departs from it:
//
//	trust.go            which probe and which baseline may move a potential
//	normalized.go       verification potential of bug repair (evidence per test, counts per partition)
//	pass_count.go       verification potential of repository generation (clip, re-anchoring)
//	verification.go     what both share: carrying forward, freezes, merged probes
//	navigation.go       navigation potential
//	process.go          step reward, backward credit, format term, process advantage
//	process_baseline.go the group_mean extension
//	grpo.go, rloo.go …  outcome estimators, listed in registry.go
//	tokens.go           credit by token, of estimators that need values
//	outcome.go          the outcome reward: resolved or final potential, fraction at a limit, length terms
//	objectives.go       the objectives that mo_grpo reads, as a run knows them
//	limit.go            reward of an episode that a limit stopped
//	overlong.go         length terms added to the reward before the estimator
//	sampling.go         which groups are worth an update, which tasks retire
//	explain.go          what the rules made of an episode, a reward, a group; for people
//
// To add an outcome estimator, write its file (a func of type estimator, with its source and how it departs from it) and
// add its line to the table in registry.go, with what it needs beside rewards; nothing else changes, and the property
// tests run over it. To add a milestone term, write its file beside navigation.go, give it a switch in [Milestone]
// and a call in process.go. The case format of `milepost credit recompute` is in credit/casefile; golden cases lie in
// testdata/golden.
package credit
