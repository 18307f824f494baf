// Package mine finds tasks in what real projects did: a change of code together with its tests, from a git history or
// between two releases of a package, in the manner of SWE-rebench and R2E-Gym. The code's part is the reference patch, the
// tests' part is hidden, the message or the changelog is the statement. Execution decides what becomes a task: some tests
// fail before the change and pass after it, others pass on both sides, each time.
//
// config.go says where to look; history.go walks commits, release.go lays two releases side by side as if they were
// commits and cuts the difference into groups; candidate.go says which change is worth a run, statement.go what an agent is
// told; prove.go runs it; make.go keeps the books (ledger.go), so that an interrupted run goes on where it was, and writes the set.
package mine
