// Package launch writes what starts all parts of a run: a script for this machine, batch jobs for SLURM, or manifests for
// Kubernetes. It writes only; nothing here starts a process or speaks to a scheduler.
//
// A target is one file of this package with its templates below templates/, and one line in targets (launch.go). What
// the parts are and how they are called stands in parts.go, once for all targets.
package launch
