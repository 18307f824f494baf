// Package certify finds out whether tasks are fit for training and evaluation, by running them, and writes certificates
// beside them (benchmarks.Certificate).
//
//	certify.go   a whole set: what is still valid is kept, what is done is on disk at once, one broken task stops nobody
//	task.go      one task: both sides n times, each in a fresh sandbox
//	sabotage.go  the grader: files that try to sway it (programs/), none of which may resolve the task
//	leaks.go     the agent's view: git's objects, the workspace and what is installed, searched for the fix and the tests
//
// A new kind of sabotage is a function in sabotage.go and an entry of its table; a new leak is a function in leaks.go.
package certify
