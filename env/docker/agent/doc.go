// Package agent is the program that runs as process 1 of every container of the docker driver. It works on the files of
// the workspace, runs commands and ends them with everything they started, at the driver's word.
//
// The driver speaks to it over the container's standard input and output, one multiplexed connection for the container's
// whole life (package wire says what is said). So a command costs a message and not an exec of the engine, and there is
// no connection a cancelled command could leave behind. Where the connection ends, or nothing was heard on it for as long
// as the lease says, the agent exits and the kernel ends the container: that is what becomes of a dead owner's sandboxes.
//
//	main.go       which role this process has; package initialisation hands over before anything else of the program runs
//	server.go     process 1: streams, requests, the lease
//	files.go      file operations, and the tar streams in and out
//	index.go      what the workspace looked like when it was unpacked, and what differs since
//	command.go    one command from its request to its result
//	children.go   starting and reaping children, and ending those that no command owns any more
//	supervise.go  the parent of one command: it adopts all orphans of the command and ends them with it
//	protect.go    what keeps a command from harming process 1
//	oom.go        the kernel's count of processes killed for memory
//
// # How a command ends
//
// Every command has a supervisor between process 1 and itself. It is the subreaper of the command: whatever the command
// starts, however it hides, has the supervisor as its last ancestor. When the command ends or is to be killed, the
// supervisor stops every descendant, then kills them, and exits when it has no child left. A command that kills its own
// supervisor leaves its processes to process 1, which kills every process that it has not started itself; where that does
// not succeed at once it kills everything in the container in one system call, which no fork can outrun.
//
// The exec protocol: the driver sends the Request, then Data frames of standard input and an End; the agent answers with
// Accepted and Started, or with an Answer where the command could not be run, then Stdout and Stderr frames and an Answer
// with the Result. OpKill on a stream of its own ends it early, once it was accepted.
package agent
