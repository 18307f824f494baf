package repo

import "testing"

func TestIsCache(t *testing.T) {
	for path, want := range map[string]bool{
		"pkg/__pycache__/a.cpython-311.pyc": true, "a.pyc": true, ".pytest_cache/v/cache/lastfailed": true,
		".git/HEAD": true, ".GIT/config": true, "sub/.git": true, "sub/.git/config": true,
		"pkg/core.py": false, ".github/workflows/ci.yml": false, ".gitignore": false, ".gitattributes": false, "a.pyc.txt": false,
	} {
		if got := IsCache(path); got != want {
			t.Errorf("IsCache(%q) = %t, want %t", path, got, want)
		}
	}
}
