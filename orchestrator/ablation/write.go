package ablation

import (
	"io"

	milepost "github.com/milepost-rl/milepost"
)

var errNotYet = milepost.E("ablation", milepost.KindInternal, "not written yet")

// WriteMarkdown writes the tables as Markdown.
func WriteMarkdown(w io.Writer, s Study, r Result) error { return errNotYet }

// WriteCSV writes arms.csv, runs.csv, curves.csv, comparisons.csv and search.csv into dir.
func WriteCSV(dir string, s Study, r Result) error { return errNotYet }

// WriteHTML writes the page with its figures.
func WriteHTML(w io.Writer, s Study, r Result) error { return errNotYet }

// Write writes ablation.md, ablation.html and the CSV files into dir, each whole or not at all.
func Write(dir string, s Study, r Result) error { return errNotYet }
