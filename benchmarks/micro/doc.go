// Package micro makes the tasks of the small machine: git repositories of short Python modules with real unit tests
// and several independent faults, in a language small enough for a model of one million parameters.
//
// Every function is one line under a docstring that states the truth:
//
//	def fee(x):
//	    """x plus 7."""
//	    return x - 7
//
// The docstring alone decides the right line, so a policy can learn the repair; the body may hold a fault of one of
// five families. With [KindGenerate] a specification asks for the same functions instead: the repository is empty, the
// tests are hidden, and what counts is how many of them pass.
//
// The grammar (grammar.go) is a table of forms; a new form goes there, and everything else (files, tests, statement,
// expert) follows from it. forms.go holds the table, generate.go draws one task from it, render.go writes its files,
// specify.go its specification, make.go writes the set and checks it by running the tests.
package micro
