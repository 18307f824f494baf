// Package inject makes tasks from a real Python package: real code, its real pytest suite, and faults put in by
// mutating the syntax tree, in the manner of SWE-smith (arXiv 2504.21798). A fault is kept only where existing tests
// catch it and most of the suite still passes.
//
// Package pypkg gets the source distribution from PyPI, mutate.py lists possible faults with exact positions (mutate.go runs
// it), baseline.go finds the healthy tests, make.go tries mutants and writes the tasks, statement.go says what an agent
// is told. A new family of faults goes into mutate.py.
//
// Fast suites make good tasks. toolz 1.0.0 is recommended: 138 tests in about 0.3 s and 460 possible faults with
//
//	Package: "toolz==1.0.0"
//	Tests:   toolz/tests/test_itertoolz.py toolz/tests/test_dicttoolz.py toolz/tests/test_functoolz.py toolz/tests/test_recipes.py
//
// inflection 0.5.1 (455 tests in 0.2 s, one small module) and h11 0.16.0 (78 tests in 0.3 s) are others.
package inject
