// Package logs reads what test runners printed, in the way the public benchmarks read it.
//
// A benchmark's verdict depends on the quirks of its parsers: test ids were recorded by them, so a stricter reading
// would give other ids and other verdicts. Parsers here therefore do what the reference implementation does, also where
// it looks wrong; where that is so, a comment at the parser says it. The referee is the Python package swebench 5.0.2
// (differential_test.go compares), and for data sets it does not know, that data set's own reader. The strict parsers for
// Milepost's own tasks are in env/testlog.
//
// One file holds one family of runners (pytest.go, jest.go, mocha.go, ...); registry.go maps names and repositories to
// parsers; text.go holds Python's meaning of text, which every parser relies on. A new parser goes into the file of its
// family and gets a line in the registry; the differential test fails until it has logs in testdata.
//
// Parsers are pure and take the log as one string; they keep copies of test names only, so memory beyond the log grows
// with the number of distinct tests and is bounded by [MaxResults].
package logs
