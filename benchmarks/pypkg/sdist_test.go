package pypkg

import (
	"bytes"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
)

func TestUnpackRefusesPathsOutside(t *testing.T) {
	for name, kind := range map[string]milepost.Kind{"../evil.py": milepost.KindCorrupt, "/etc/evil": milepost.KindCorrupt, "p-1/a/../../../x": milepost.KindCorrupt} {
		if _, err := unpack(bytes.NewReader(benchtest.Tarball(t, map[string]string{name: "x"})), "p.tar.gz"); milepost.KindOf(err) != kind {
			t.Errorf("member %q: %v", name, err)
		}
	}
	files, err := unpack(bytes.NewReader(benchtest.Tarball(t, map[string]string{"p-1/a.py": "x", "p-1/.git/config": "y"})), "p.tar.gz")
	if err != nil || len(files) != 1 || files[0].Path != "a.py" {
		t.Errorf("files %v, %v", files, err)
	}
	if _, err := unpack(strings.NewReader("no archive"), "p.tar.gz"); milepost.KindOf(err) != milepost.KindCorrupt {
		t.Errorf("no archive: %v", err)
	}
}
