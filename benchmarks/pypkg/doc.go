// Package pypkg is what the makers of tasks from real Python packages share: source distributions (sdist.go), which of
// their files are tests, code and metadata (layout.go), the suite's command and its steady tests (suite.go), an
// environment that has what a package needs, but not the package (venv.go), and tasks whose repository lies in an image that
// holds the release (image.go).
//
// Makers are inject, mine and generate beside it; what only one of them needs stays there.
package pypkg
