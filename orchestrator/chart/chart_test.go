package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1", .25: "0.25", 12.345: "12.3", 123456: "123456", 1.2e-7: "1.2e-7", 3e6: "3e6", -0.5: "-0.5", 100: "100", 5e-4: "5e-4"} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestTicksCover(t *testing.T) {
	for _, r := range [][2]float64{{0, 1}, {0, .37}, {-.3, .2}, {0, 1234}, {3, 4}} {
		ticks := NiceTicks(r[0], r[1], 4)
		if ticks[0] > r[0]+1e-9 || ticks[len(ticks)-1] < r[1]-1e-9 || len(ticks) > 9 {
			t.Errorf("ticks of %v: %v", r, ticks)
		}
	}
}

func TestBandIsDrawnBelowItsLine(t *testing.T) {
	c := Chart{Title: `rate & "band"`, X: "million tokens", Fractions: true, Lines: []Line{
		{Label: "a<b", Band: true, Points: []Point{{X: 0, Y: .25, Low: .25, High: .25}, {X: .3, Y: .5, Low: .5, High: .5}, {X: .5, Y: .5, Low: .25, High: .75}}},
		{Class: "ref", Points: []Point{{X: 0, Y: 0}, {X: .5, Y: 1}}},
	}}
	svg := string(c.SVG())
	// The plot is 282 by 138 at (46, 10) and spans 0..0.5 by 0..1.
	for _, want := range []string{
		`<polygon class="band s0" points="46.0,113.5 215.2,79.0 328.0,44.5 328.0,113.5 215.2,79.0 46.0,113.5"/>`,
		`<polyline class="line ref" points="46.0,148.0 328.0,10.0"/>`,
		`<title>a&lt;b, million tokens 0.5: 0.5 (0.25 to 0.75)</title>`,
		`text-anchor="middle">0.3</text>`, // 3 · 0.1 is not 0.3 to a machine
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart lacks %s\n%s", want, svg)
		}
	}
	if strings.Index(svg, "<polygon") > strings.Index(svg, "<polyline") {
		t.Error("the band covers a line")
	}
	for dec := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestStyleNamesTheClassesOfAChart(t *testing.T) {
	for _, class := range []string{".grid", ".tick", ".limit", ".line.s0", ".whisker", ".dot.s0"} {
		if !strings.Contains(Style, class) {
			t.Errorf("Style lacks %s", class)
		}
	}
}
