// Package ablation says what the arms of an ablation study show: how far each is from the reference arm, with what
// uncertainty, at what cost. It holds statistics and rendering only; running the arms is the business of the command.
//
//	study.go      what a study is made of, filled by hand or by LoadRun; options
//	validate.go   what is refused, by place
//	load.go       LoadRun: a run folder as a Run
//	series.go     a run's held-out curve: value at a count, area
//	bootstrap.go  the two-level bootstrap, the t interval over seeds
//	correct.go    corrections for multiple comparisons
//	analyse.go    Analyse: Study to Result (types in result.go, comparisons in compare.go, curves in bands.go)
//	markdown.go, csv.go, html.go, figures.go, write.go   the same Result for people and for programs
//
// The statistics are pure and seeded: equal studies give equal bytes. A new number is a field of Result, filled in
// analyse.go, and a column of the CSV files; a new figure is a function in figures.go and a block of page.html.tmpl.
package ablation
