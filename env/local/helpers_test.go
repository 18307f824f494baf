package local

import (
	"os"
	"strings"
	"testing"
)

// assertNothingLeft checks that no mount, folder or control group of a closed driver is left.
func assertNothingLeft(t testing.TB, root string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left in the folder: %s", e.Name())
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), root) {
		t.Errorf("a mount is left below %s", root)
	}
}
