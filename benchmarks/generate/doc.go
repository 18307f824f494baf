// Package generate makes repository-generation tasks from existing Python packages, in the manner of NL2Repo-Bench and
// DeNovoSWE: the package and its tests are taken out of the source distribution, a specification of documentation and
// interface takes their place, and the package's own suite, hidden, judges what an agent writes, by the share that passes.
//
// config.go says what to make; specify.py writes the interface (specify.go runs it and adds the documentation); layout.go
// says which files are code, tests, documentation or metadata; leaks.go proves that neither the environment nor the
// specification holds the package; make.go writes the task and proves it: the package itself passes every counted test,
// the emptied tree none, each time.
//
// Tiny tasks of this kind for the small machine are package micro's.
package generate
