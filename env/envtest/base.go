package envtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// baseFiles is the base repository. A value that begins with "-> " is a link, a path that ends in "*" is executable.
var baseFiles = map[string]string{
	"README.md":             "readme\n",
	"run.sh*":               "#!/bin/sh\n",
	"link":                  "-> README.md",
	"pkg/__init__.py":       "",
	"pkg/core.py":           "x = 1\n",
	"pkg/sub/deep.py":       "y = 2\n",
	"pkg/sub/other.py":      "z = 3\n",
	"dir/one.txt":           "1\n",
	"dir/two.txt":           "2\n",
	"old/__pycache__/a.pyc": "cache",
	".git/HEAD":             "ref: refs/heads/main\n",
	".git/config":           "[core]\n\tbare = false\n",
	".git/packed-refs":      "# pack-refs\n",
	".git/refs/heads/main":  "1111111111111111111111111111111111111111\n",
	".git/index":            "index",
	".git/objects/11/11":    "object",
	".git/hooks/x.sample*":  "#!/bin/sh\n",
	".git/info/exclude":     "*.log\n",
}

// MakeBase writes the base repository of the suite into a directory of the test. Its .git has the right shape and no
// real objects.
func MakeBase(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range baseFiles {
		mode := fs.FileMode(0o644)
		if p, ok := strings.CutSuffix(name, "*"); ok {
			name, mode = p, 0o755
		}
		p := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		if target, ok := strings.CutPrefix(text, "-> "); ok && err == nil {
			err = os.Symlink(target, p)
		} else if err == nil {
			err = os.WriteFile(p, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fingerprint describes every file of a directory, its times included.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := ""
		if e.Type().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(data)
		}
		fmt.Fprintf(&b, "%s %v %v %q\n", p, info.Mode(), info.ModTime().UnixNano(), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
