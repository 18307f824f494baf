// Package predictions reads and writes what other harnesses exchange: predictions of patches (predictions.go), in
// SWE-bench's form and in that of SWE-bench Pro, and reports of what they achieved (report.go), in SWE-bench's form. A
// further form is a further file.
package predictions
