// Package checks holds the tests that keep the tree to its own rules: which package may import which, that documents
// point at files that exist, that no address of a package registry and no path of one machine stands anywhere. `make
// check` runs it. A new rule is a new test file here.
package checks
