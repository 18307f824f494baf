package ablation

import (
	"os"
	"testing"
)

// TestLook writes a whole study to look at with a browser, into the directory of MILEPOST_ABLATION_DIR.
func TestLook(t *testing.T) {
	dir := os.Getenv("MILEPOST_ABLATION_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	s := usual()
	r, err := Analyse(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, s, r); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ablation.md", "ablation.html", "arms.csv", "runs.csv", "curves.csv", "comparisons.csv", "search.csv"} {
		if info, err := os.Stat(dir + "/" + name); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || os.Getenv("MILEPOST_ABLATION_DIR") == "" && len(entries) != 7 {
		t.Errorf("%d files, %v: something half-written stayed", len(entries), err)
	}
}
