// Package grade gives verdicts on patches, in the way of the data set that a task comes from.
//
// It has three layers, each usable without the ones above:
//
//	logs/       parsers: what a test runner printed, as states of tests
//	judge.go    the pure judge: a task and the evidence of one run in, a [Verdict] out. No clock, no disk, no process.
//	exec.go     one run: a fresh sandbox, the patch (apply.go), the evaluation script (script.go), the log on disk
//	grader.go   many runs: predictions in, verdicts and reports (report.go) in a folder, resumable
//
// The rules of judging are in states.go (SWE-bench and its kin) and rules.go (the others), one function for each value of
// milepost.GradeRule. A data set with a rule of its own gets a value there, a function here and a line in [Judge].
//
// The referee for SWE-bench's rules is the Python package swebench 5.0.2: same logs, same report (referee_test.go). What
// it does not do is marked in the comments: closed outcomes, infrastructure failures apart from wrong answers.
package grade
