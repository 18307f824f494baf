// Package testrun runs a task's tests on one state of its repository and says how each test ended.
//
// A run is stateless: base tree, wanted tree and the difference between them come in, the tree is rebuilt and proven, the
// tests run on a copy that no later run sees, an [Outcome] goes out. There are three ways to run:
//
//	fresh.go      a sandbox of its own and the task's command as it stands; the log is parsed (package testlog)
//	image.go      the evaluation of a data set, and repositories that lie in images
//	resident.go   a Python process that has unittest imported and forks a child per run, for tasks that allow it
//	slot.go       one such process in its sandbox, and the exchange with it
//	pool.go       which run gets which process
//	resident.py   the program that runs in it
//
// Starting an interpreter and unittest costs a hundred milliseconds of processor time, a fork two: on small repositories
// the resident process is what makes a probe after every action affordable. A test framework that allows the same gets a
// program beside resident.py and a name for Task.Test.Resident; a new log format goes to package testlog.
package testrun
