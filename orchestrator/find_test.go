package orchestrator

import (
	"os"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// TestFind: an id, a unique begin or end, of a finished batch and of one that grows and is torn.
func TestFind(t *testing.T) {
	f, err := OpenFolder(t.TempDir(), Header{Name: "t", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Find("x"); milepost.KindOf(err) != milepost.KindNotFound || !strings.Contains(err.Error(), "has no episode yet") {
		t.Errorf("empty folder: %v", err)
	}
	records := func(ids ...string) (out []EpisodeRecord) {
		for _, id := range ids {
			out = append(out, EpisodeRecord{Episode: &milepost.Episode{ID: id}})
		}
		return out
	}
	if err := f.WriteEpisodes("u0001", records("u0001/g00/a00", "u0001/g00/a00+r1", "u0001/g01/a07")); err != nil {
		t.Fatal(err)
	}
	part, _, err := openPart(f, "u0002")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records("u0002/g00/a00", "u0002/g00/a01") {
		if err := part.add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := part.close(); err != nil {
		t.Fatal(err)
	}
	path := f.Path("episodes", "u0002.jsonl.zst.part")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, whole[:len(whole)/4]...), 0o644); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]Located{
		"u0001/g00/a00": {"u0001/g00/a00", "u0001", true}, // exact, although it begins another
		"a07":           {"u0001/g01/a07", "u0001", true},
		"+r1":           {"u0001/g00/a00+r1", "u0001", true},
		"u0001/g01":     {"u0001/g01/a07", "u0001", true},
		"a01":           {"u0002/g00/a01", "u0002", false},
	} {
		if got, err := f.Find(id); err != nil || got != want {
			t.Errorf("%q: %+v, error %v, want %+v", id, got, err, want)
		}
	}
	for id, want := range map[string]struct {
		kind  milepost.Kind
		words string
	}{
		"a00":   {milepost.KindInvalid, `"a00" begins or ends 2 episode ids: u0001/g00/a00, u0002/g00/a00`},
		"u0002": {milepost.KindInvalid, "u0002/g00/a00, u0002/g00/a01"},
		"b":     {milepost.KindNotFound, `there is no episode "b"; there are u0001/g00/a00, u0001/g00/a00+r1, u0001/g01/a07, u0002`},
		"":      {milepost.KindNotFound, `no episode ""`},
	} {
		if _, err := f.Find(id); milepost.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.words) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := os.WriteFile(f.Path("episodes", "u0001.jsonl.zst"), []byte("no zstd"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Find("a01"); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "u0001.jsonl.zst") {
		t.Errorf("damaged: %v", err)
	}
}

func TestRules(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	if _, _, err := f.Rules(); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no file: %v", err)
	}
	write := func(text string) {
		if err := f.SaveConfig([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write("credit:\n  estimator: rloo\n  milestone:\n    w_ver: 0.5\n    read: null\nschedule:\n  keep_group: outcome\n")
	if _, keep, err := f.Rules(); err != nil || keep != credit.CriterionOutcome {
		t.Errorf("an older run keeps groups by %s, %v", keep, err)
	}
	write("credit:\n  estimator: rloo\n  milestone:\n    w_ver: 0.5\n    read: null\nschedule:\n  sampling:\n    criterion: outcome\n")
	c, keep, err := f.Rules()
	if err != nil || keep != credit.CriterionOutcome || c.Estimator != "rloo" || *c.Milestone.WVer != .5 || c.Milestone.Read != 1 || c.Eps != 1e-6 {
		t.Errorf("%+v, %s, %v", c, keep, err)
	}
	write("credit:\n  estimator: luck\n")
	if _, _, err := f.Rules(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), `config.yaml: credit: configure: field estimator is "luck"`) {
		t.Errorf("got %v", err)
	}
}
