package local

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

// readTree maps the files and links below dir, as git sees them, to mode and content.
func readTree(t *rapid.T, dir string) map[string]string {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && e.Name() != ".git" {
			return err
		}
		if e.Name() == ".git" {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || env.IsCache(rel) {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var data []byte
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			data = []byte(target)
		} else if data, err = os.ReadFile(p); err != nil {
			return err
		}
		out[rel] = fmt.Sprintf("%o %s", dirfs.GitMode(info.Mode()), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// naive compares two whole trees.
func naive(t *rapid.T, base, now string) []string {
	a, b := readTree(t, base), readTree(t, now)
	var out []string
	for p, v := range b {
		if a[p] != v {
			out = append(out, p+" "+v)
		}
	}
	for p := range a {
		if _, ok := b[p]; !ok {
			out = append(out, p+" deleted")
		}
	}
	slices.Sort(out)
	return out
}

// TestChangesRandom makes random edits of every kind a program can make, renames of directories and hard links among
// them, and compares Changes with a comparison of the whole trees.
func TestChangesRandom(t *testing.T) {
	base := envtest.MakeBase(t)
	for _, mode := range []WorkspaceMode{WorkspaceAuto, WorkspaceCopy} {
		t.Run(string(mode), func(t *testing.T) {
			d := open(t, Config{Unconfined: true, Workspace: mode})
			n := 0
			rapid.Check(t, func(t *rapid.T) {
				n++
				w, err := d.newWorkspace(ctx, filepath.Join(d.home, fmt.Sprint("r", n)), &driver.Spec{Base: base, Limits: driver.Limits{Disk: 1 << 20}})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := w.close(); err != nil {
						t.Fatal(err)
					}
				}()
				for range rapid.IntRange(1, 12).Draw(t, "edits") {
					edit(t, w.path())
				}
				want := naive(t, base, w.path())
				changes, err := w.changes(ctx, func(p string) bool { return filepath.Base(p) == ".git" || env.IsCache(p) }, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, c := range changes {
					if c.Deleted {
						got = append(got, c.Path+" deleted")
					} else {
						got = append(got, fmt.Sprintf("%s %o %s", c.Path, c.Mode, c.Data))
					}
				}
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Fatalf("changes\n got %q\nwant %q", got, want)
				}
			})
		})
	}
}

// edit does one random thing to a tree; what the file system refuses is no edit.
func edit(t *rapid.T, dir string) {
	paths := []string{"new", "dir", "pkg", "pkg/sub", "pkg/sub/deep.py", "pkg/core.py", "README.md", "run.sh", "link", "dir/one.txt",
		"dir/new/x", "dir/new", "pkg/__pycache__", "pkg/__pycache__/c", "old", "moved", "moved/one.txt", "moved/sub/deep.py", "moved/core.py"}
	path := func(name string) string { return filepath.Join(dir, rapid.SampledFrom(paths).Draw(t, name)) }
	texts := []string{"", "x = 1\n", "x = 2\n", "y = 2\n", "1\n", "README.md", "readme\n"}
	text := func() []byte { return []byte(rapid.SampledFrom(texts).Draw(t, "text")) }
	p, q := path("p"), path("q")
	ops := map[string]func() error{
		"write":   func() error { return os.WriteFile(p, text(), 0o644) },
		"mkdir":   func() error { return os.MkdirAll(p, 0o755) },
		"remove":  func() error { return os.RemoveAll(p) },
		"rename":  func() error { return os.Rename(p, q) },
		"link":    func() error { return os.Link(p, q) },
		"symlink": func() error { return os.Symlink("README.md", p) },
		"chmod": func() error {
			if info, err := os.Lstat(p); err != nil || !info.Mode().IsRegular() {
				return err
			}
			return os.Chmod(p, rapid.SampledFrom([]fs.FileMode{0o644, 0o755, 0o600}).Draw(t, "mode"))
		},
		"append": func() error {
			f, err := os.OpenFile(p, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.Write(text())
			return errors.Join(err, f.Close())
		},
	}
	_ = ops[rapid.SampledFrom(slices.Sorted(maps.Keys(ops))).Draw(t, "op")]()
}
