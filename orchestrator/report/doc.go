// Package report turns a run folder into one self-contained HTML page and a short text for the terminal. It reads only
// the folder, so it works on a run that is going, that was interrupted or that ended, on any machine.
//
// [Load] collects the facts ([Data]); the page is page.html.tmpl over them, with the style sheet of package chart and
// style.css behind it; the charts are inline SVG made by package chart and drawn in the colours of the page, light or
// dark. A new chart is a line in curves.go; a new section is a field of Data, its loader in a file of its own, and a
// block in the template.
package report
