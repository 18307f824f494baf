// Package messages holds what every part that speaks over NATS shares: shadow probing and rollout workers.
//
//	wire.go     a message: JSON with a version and a checksum; tokens of subjects
//	objects.go  bytes above the message size, in the object store
//	blobs.go    the files of a difference, on the way and off it
//	workers.go  what a worker says of itself, and how its slots run and drain
//	bases.go    how a worker on another machine gets the base repository of a task; the run's prober answers (package shadow)
//
// What only one of them says stays with it: subjects, streams and message types live in shadow and rollout/remote.
package messages
