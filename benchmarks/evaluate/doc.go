// Package evaluate is the part of `milepost eval` that needs no sandbox, model or clock: what is attempted, what is known
// of each attempt, and what follows from it.
//
// The way of an evaluation: plan.go lists the attempts; run.go makes them, several at once, and repeats what infrastructure
// lost; journal.go keeps each one that ended, so that a killed evaluation repeats none; result.go turns the records into a
// [Result] by passk.go (pass@k, score@k), select.go (one attempt chosen by visible tests) and cost.go (tokens, prices);
// table.go shows it, compare.go sets two beside each other, export.go writes predictions and reports for other harnesses.
// identity.go says when two evaluations are of the same thing, meter.go listens to the model.
//
// A further figure is a field of [Result], computed from records alone, so that it can be had of old journals too.
package evaluate
