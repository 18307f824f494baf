// Package explain lays out how the credit of one episode came about, step by step: what the action was, what it exposed,
// which tests it fixed and broke, every term of its credit, and why a probe was not trusted. `milepost credit explain`
// prints it and the report shows it; both take [Episode], so they cannot differ.
//
// The rules are package credit's (Engine.Explain, ExplainGroup); here they are put beside what the agent did and into
// words. episode.go holds the data and makes it from inputs and credit, step.go its steps, run.go reads it from a run
// folder, words.go has the sentences and text.go the table for a terminal. A new fact goes into Episode or Step, its
// sentence into words.go; terminal, JSON and report then have it.
package explain
