package report

import (
	"bytes"
	"strings"
	"testing"
)

// TestValueHeadPanel: the curves of a value head are there where the run recorded its loss, and only there.
func TestValueHeadPanel(t *testing.T) {
	d, err := Load(newRun(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		if want {
			for _, m := range d.Metrics {
				m.Values["value_loss"], m.Values["explained_variance"] = .25, .5
			}
		}
		var page bytes.Buffer
		if err := d.Render(&page); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(page.String(), "Explained variance"); got != want {
			t.Errorf("the panel is shown: %v, want %v", got, want)
		}
	}
}
