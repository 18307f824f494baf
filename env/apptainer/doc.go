// Package apptainer runs sandboxes with the command line of Apptainer (or its siblings Singularity and SingularityCE), for
// clusters whose machines have no Docker, as under Slurm.
//
//	config.go   Config, its defaults and bounds
//	driver.go   Driver: what the machine can do; makes sandboxes, closes everything
//	image.go    what a task's image means here, and the one pull of it
//	launch.go   the command line and the environment of the program
//	places.go   the folders that a sandbox may write to
//	sandbox.go  driver.Sandbox: one container, its limits and its end
//
// # How it works
//
// A sandbox is one `apptainer exec`. Process 1 in it is the agent of package docker/agent, this very program, shown
// read-only; all work on a sandbox goes over the standard input and output of that one command (package guest). Nothing is
// left with a daemon: where the connection ends, or the owner was silent for Config.Lease, the agent exits and the kernel
// ends the container.
//
// # Confinement
//
// The container has namespaces of its own for processes, mounts, IPC, host name and, unless the Spec allows the network,
// for the network, which then is a loopback. The image is read-only. Of the host nothing is mounted but the agent, the
// workspace, /tmp, /var/tmp and /dev/shm, which are folders of this sandbox alone, and the Spec's mounts: the site's bind
// paths, the home directory, the working directory and /sys are left out, and so is every variable of the environment,
// APPTAINER_BIND and its like included. Commands have no capability and cannot gain one (no new privileges). They run as the
// user of this process; where that is root, as Config.User. System calls are not filtered unless the site does it, and where the site lets
// everybody make user namespaces, so may commands: that gives them no right over anything outside.
//
// # Limits
//
// Memory and processes are limited by a control group per sandbox where one can be written (package cgroup), else per process
// by RLIMIT_AS and per user by RLIMIT_NPROC, and running out of memory is not told from other ends. The growth of the
// workspace is bounded where tmpfs can be mounted, that is, for root; else only file sizes are. [Driver.Describe] says which
// it is. Wall, CPU, FileSize and Output are the agent's to keep.
package apptainer
