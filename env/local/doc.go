// Package local runs sandboxes on this machine: a workspace on overlayfs and every command in a bubblewrap of its own.
//
//	config.go     Config, its defaults, and what New finds out about the machine
//	driver.go     Driver: owns the folder, makes sandboxes, counts what is open
//	workspace.go  overlay.go  copy.go   how a workspace comes to be, is reset, removed and compared with its base
//	bwrap.go      the argument list: what a command may see
//	exec.go  process.go  status.go      one command from start to the proof that nothing of it is left
//
// The files of a workspace are worked on by package env/dirfs; who owns a folder, and the sweep that collects what a dead
// owner left, are package env/owner's, memory and process limits package env/cgroup's.
//
// # Confinement
//
// A command sees /usr and its links, a few files of /etc, the Python it was told to use, all read-only; /workspace and
// a private, bounded /tmp and /dev/shm, writable; its own /proc. It has no network but a loopback of its own (unless
// the Spec asks for the host's), no capability, cannot gain one through a user namespace, and sees no process but its
// own. Inside it is user 1000. Where Milepost runs as root that user is mapped to root outside, since files of a base
// belong to root and an overlay keeps their owners (layers with mapped owners would lift that; they are not used yet).
// The capabilities are gone all the same, and nothing that this identity may write is shown: /proc is read-only because
// of it, /sys is not there. System calls are not filtered. With Spec.Network a command reaches everything that listens
// on this machine, abstract sockets too. Where Milepost runs as another user it is that user.
//
// # Limits
//
// Memory and processes are limited by a control group per command (version 1, or 2 with both controllers at hand), and
// an out-of-memory kill is told from the group's own counter. Without a writable control group RLIMIT_AS per process
// and, unless root, RLIMIT_NPROC take their place, and OutOfMemory is never reported; [Driver.Report] says which it is.
// File size, CPU time, open files and core files are rlimits. The growth of a workspace (Limits.Disk) is bounded by
// the size of the tmpfs that holds the upper layer; where no tmpfs can be mounted only file sizes are bounded.
package local
