// Package env gives agents and tests a place to work: a [Sandbox] is one workspace that starts as a copy of a base
// repository, and the means to read, write and run programs in it.
//
// Sandbox is a concrete, portable type. It alone validates arguments (paths stay inside the workspace, limits make
// sense), refuses use after Close, and gives errors their kind, once. The technology behind it is a driver:
//
//	env/driver   the small interface a technology implements
//	env/local    bubblewrap and overlayfs on this machine
//	env/memory   files in memory and a scripted Exec, for tests of what lies above
//	env/envtest  the conformance suite; a driver exists once it passes
//
// What the task did is in the [Result]: exit code, time, memory. An error is either the caller's (invalid, not_found,
// denied, canceled, conflict for a closed sandbox), the workspace's own limit (limit), or the infrastructure's
// (unavailable), which is never counted as a wrong answer.
//
// A new driver gets its own directory here. A new operation of a sandbox is added to driver.Sandbox only where it
// cannot be built from what is there; see git.go for one that is built.
package env
