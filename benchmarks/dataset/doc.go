// Package dataset reads public data sets of software-engineering tasks into Milepost's own task sets: [Import].
//
// The way of a row: source.go finds the files of a file, a folder or a hub's repository (hub.go); jsonl.go, jsonarray.go,
// parquet.go and folders.go turn each into rows, one at a time and of bounded size; a [Format] recognises its rows by
// their columns and makes a milepost.Task of each; import.go writes tasks and rows side by side, so that no column is
// lost. Every fault is an error that names file, row, instance and column, and says what is allowed.
//
// A data set is one file here that declares a Format (name, recogniser, mapping, where its facts come from) and one line
// in registry.go. What several share is in classic.go (SWE-bench and its kin) and row.go (typed access to columns).
// Test lists come as JSON lists, JSON in a string, or Python literals: pylist.go reads all three.
package dataset
