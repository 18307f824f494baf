package owner

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFolder(t *testing.T) {
	root := t.TempDir()
	home, err := TakeFolder(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"notes", prefix + "x", prefix + "1-2-y"} { // not an owner's; the last was never alive
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var swept []string
	if err := Sweep(root, func(name string) { swept = append(swept, name) }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{filepath.Base(home): true, "notes": true, prefix + "x": true, prefix + "1-2-y": false} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s: %v, kept should be %v", name, err, want)
		}
	}
	if len(swept) != 1 || swept[0] != prefix+"1-2-y" || !Dead(swept[0]) || Dead(filepath.Base(home)) {
		t.Errorf("swept %q", swept)
	}
	if err := RemoveFolder(home); err != nil {
		t.Error(err)
	}
}
