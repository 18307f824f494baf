// Package prepare makes tasks whose repository lies in an image ready for agents and probes: it takes the base of each
// out of its image, once, so that states of the repository have trees and deltas, and pins the image.
//
//	prepare.go   the set: which tasks, how many at a time, what is kept when it is interrupted
//	task.go      one task: image, prepared repository, environment, base, proof
//	history.go   a tar stream as a commit without history in the set's repository of bases
//	environ.go   the variables that activating the image's environment sets
//
// A data set whose images want more than that (another way to activate, tools that must be there) gets it in environ.go or
// task.go.
package prepare
