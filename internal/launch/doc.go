// Package launch writes what starts all parts of a run: a script for this machine, batch jobs for SLURM, or manifests for
// Kubernetes. It writes only; nothing here starts a process or speaks to a scheduler.
//
// A target is its templates below templates/ and a line in targets (launch.go). What the parts are and how they are called
// stands in templates/part.sh, once for all targets.
package launch
