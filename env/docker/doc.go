// Package docker runs sandboxes in containers of one Docker engine or of several, on this machine or others. Podman's
// socket speaks the same language.
//
//	config.go     Config, its defaults and bounds
//	driver.go     Driver: opens the engines, makes sandboxes, closes everything
//	engine.go     one engine: its client, its health, the volume that holds the agent
//	pool.go       which engine gets the next sandbox; what becomes of one that fails
//	pull.go       images: one pull at a time for each, a token bucket for each registry
//	bases.go      volumes with the repositories that lie in images
//	container.go  what a container may do: limits, rights, network, mounts
//	attach.go     the one connection to a container's process 1
//	sandbox.go    driver.Sandbox: limits and close; files and commands are package guest's
//	owner.go      labels: who made what, and whether that one is alive
//	reaper.go     collects what a dead owner left
//	errors.go     which failure is whose
//	events.go     containers that ran out of memory, as the engine tells
//	executable.go the agent as a tar stream, to be put into a volume
//	agent, wire   the program that runs as process 1 of a container, and what is said to it
//	dockertest    an engine and an image for tests
//
// # How it works
//
// A sandbox is one container. Its root file system is the image, read-only; the workspace, /tmp and /dev/shm are bounded
// tmpfs mounts, so that nothing a task writes is kept anywhere. Process 1 is the agent (package agent): this very program,
// from a read-only volume. All work on a sandbox goes over one connection to it. The engine's exec and copy calls are not
// used: an exec costs 75 ms where a message costs 1, its cancelled connections leak, it cannot end a process tree, and
// copying follows links.
//
// # Confinement
//
// All capabilities are dropped, no new privileges can be gained, the engine's system call filter and masked paths hold,
// there is no network unless the Spec allows it (then: the configured one), no device, no socket of the engine. Commands
// run as Config.User. They share the container with each other: /tmp lasts from one command to the next, until Reset.
//
// # Limits
//
// Memory and Procs are limits of the container, so commands that run at once share them: the largest of theirs holds.
// Files in the workspace and /tmp are memory and count; the base and the agent's own needs are added on top. The growth of
// the workspace is bounded by Limits.Disk and by half of Limits.Memory, /tmp and /dev/shm by a quarter each, so that files
// alone cannot use up a container. The agent's threads and processes are added to Procs as a fixed number, so a command
// may get a few more than it was given. Wall, CPU, FileSize and Output are the agent's to keep.
//
// # What a dead owner leaves
//
// Containers are made with labels that say whose they are, and remove themselves when they end. The agent ends its
// container when the connection does, and when the owner was silent for Config.Lease. What is left all the same (a
// container made and not started, the agent's volume) is collected by the next driver on that engine, at its start and
// every Config.Reap: at once where the owner was a process of this machine and is dead, after a while where it was on
// another machine.
package docker
