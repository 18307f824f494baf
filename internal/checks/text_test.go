package checks

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the top of the repository as seen from this package's tests.
const root = "../.."

func tracked(t *testing.T, patterns ...string) []string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", root, "ls-files", "-z", "--"}, patterns...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	if len(files) < 1 || files[0] == "" {
		t.Fatalf("git tracks nothing that matches %v", patterns)
	}
	return files
}

// TestNoHostsOrMachinePaths keeps addresses of package registries and home directories of one machine out of the tree.
func TestNoHostsOrMachinePaths(t *testing.T) {
	// Spelled in pieces so that this file does not match itself.
	bad := regexp.MustCompile(strings.Join([]string{
		"py" + `pi\.org`, "python" + `hosted`, `proxy\.go` + `lang`, `registry\.npm` + `js`, `deb\.deb` + `ian`, `static\.cra` + `tes`, "/wo" + "rk/", "/ro" + `ot/\.`,
	}, "|"))
	for _, f := range tracked(t) {
		b, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			continue // deleted in the work tree
		}
		if m := bad.Find(b); m != nil {
			t.Errorf("%s:%d names %q", f, bytes.Count(b[:bytes.Index(b, m)], []byte("\n"))+1, m)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)

// TestDocumentLinks follows every relative link of every document.
func TestDocumentLinks(t *testing.T) {
	for _, f := range tracked(t, "*.md") {
		b, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			continue
		}
		for _, m := range link.FindAllSubmatch(b, -1) {
			target := string(m[1])
			if strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(f), target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", f, target)
			}
		}
	}
}
