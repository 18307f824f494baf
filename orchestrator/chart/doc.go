// Package chart draws small line charts as inline SVG: lines with whiskers or bands, linear or logarithmic. A chart has no
// colours of its own; Style, the style sheet of every page that Milepost writes, gives them, light or dark. What only
// one page needs stays in the package of that page, behind Style; another kind of chart that two pages draw goes here.
package chart

import _ "embed"

// Style is the part of the style sheet that all pages share: colours, text, cards, tables, charts.
//
//go:embed style.css
var Style string
