package memory

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/milepost-rl/milepost/env/driver"
)

// node is a file, a link (data is its target) or a directory. A node is replaced, never changed.
type node struct {
	mode fs.FileMode
	data []byte
}

// tree maps every path, directories included, to its node; "." is always there.
type tree map[string]*node

func (t tree) clone() tree {
	out := make(tree, len(t))
	for p, n := range t {
		out[p] = n
	}
	return out
}

// loadTree reads a directory of the host; "" is an empty tree.
func loadTree(ctx context.Context, dir string) (tree, error) {
	t := tree{".": {mode: fs.ModeDir | 0o755}}
	if dir == "" {
		return t, nil
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("base: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("base %q is not a directory: %w", dir, driver.ErrInvalid)
	}
	return t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		n := &node{mode: info.Mode()}
		switch {
		case info.Mode().IsRegular():
			n.data, err = os.ReadFile(p)
		case info.Mode()&fs.ModeSymlink != 0:
			var target string
			target, err = os.Readlink(p)
			n.data = []byte(target)
		case !info.IsDir():
			return nil
		}
		t[rel] = n
		return err
	})
}

// Files are the files of one workspace. A [Program] works on them; all methods may be called concurrently. Paths are
// relative and clean.
type Files struct {
	mu   sync.Mutex
	tree tree
}

// resolve follows links in every element of p but, unless all is set, the last.
func (f *Files) resolve(p string, all bool) (string, error) {
	done, rest := ".", p
	for range 1000 {
		if rest == "" || rest == "." {
			return done, nil
		}
		part, tail, more := strings.Cut(rest, "/")
		next := path.Join(done, part)
		if next == ".." || strings.HasPrefix(next, "../") {
			return "", fmt.Errorf("%s: %w", p, driver.ErrEscapes)
		}
		n := f.tree[next]
		switch {
		case n != nil && n.mode&fs.ModeSymlink != 0 && (more || all):
			target := string(n.data)
			if path.IsAbs(target) {
				return "", fmt.Errorf("%s links to %s: %w", next, target, driver.ErrEscapes)
			}
			rest = strings.TrimSuffix(target+"/"+tail, "/")
			continue
		case n != nil && !n.mode.IsDir() && more:
			return "", fmt.Errorf("%s: %w", next, syscall.ENOTDIR)
		}
		done, rest = next, tail
	}
	return "", fmt.Errorf("%s: %w", p, syscall.ELOOP)
}

// at returns the node at p.
func (f *Files) at(p string, all bool) (string, *node, error) {
	r, err := f.resolve(p, all)
	if err != nil {
		return "", nil, err
	}
	n := f.tree[r]
	if n == nil {
		return r, nil, fmt.Errorf("%s: %w", p, fs.ErrNotExist)
	}
	return r, n, nil
}

func describe(p string, n *node) driver.FileInfo {
	fi := driver.FileInfo{Path: p, Mode: n.mode, Size: int64(len(n.data))}
	if n.mode&fs.ModeSymlink != 0 {
		fi.Target = string(n.data)
	}
	return fi
}

// Stat is that of driver.Sandbox, as are all methods below.
func (f *Files) Stat(p string) (driver.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, err := f.at(p, false)
	if err != nil {
		return driver.FileInfo{}, err
	}
	return describe(p, n), nil
}

// ReadDir lists a directory by name.
func (f *Files) ReadDir(p string) ([]driver.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, n, err := f.at(p, true)
	if err != nil {
		return nil, err
	}
	if !n.mode.IsDir() {
		return nil, fmt.Errorf("%s: %w", p, syscall.ENOTDIR)
	}
	var out []driver.FileInfo
	for q, n := range f.tree {
		if q != "." && path.Dir(q) == dir {
			out = append(out, describe(path.Join(p, path.Base(q)), n))
		}
	}
	slices.SortFunc(out, func(a, b driver.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// ReadFile reads a regular file.
func (f *Files) ReadFile(p string, limit int64) ([]byte, fs.FileMode, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n, err := f.at(p, true)
	if err != nil {
		return nil, 0, err
	}
	if !n.mode.IsRegular() {
		return nil, 0, fmt.Errorf("%s: %w", p, driver.ErrNotRegular)
	}
	if int64(len(n.data)) > limit {
		return nil, 0, fmt.Errorf("%s has %d bytes, more than %d: %w", p, len(n.data), limit, driver.ErrTooLarge)
	}
	return bytes.Clone(n.data), n.mode, nil
}

// WriteFile writes a regular file and makes missing directories.
func (f *Files) WriteFile(p string, data []byte, mode fs.FileMode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.resolve(p, true)
	if err != nil {
		return err
	}
	if old := f.tree[r]; old != nil {
		if !old.mode.IsRegular() {
			return fmt.Errorf("%s: %w", p, driver.ErrNotRegular)
		}
		if mode == 0 {
			mode = old.mode.Perm()
		}
	}
	if mode == 0 {
		mode = 0o644
	}
	return f.put(r, &node{mode: mode, data: bytes.Clone(data)})
}

// put sets a node and makes the directories above it.
func (f *Files) put(p string, n *node) error {
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if up := f.tree[dir]; up == nil {
			f.tree[dir] = &node{mode: fs.ModeDir | 0o755}
		} else if !up.mode.IsDir() {
			return fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
		}
	}
	f.tree[p] = n
	return nil
}

// Symlink makes a link.
func (f *Files) Symlink(target, p string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.resolve(p, false)
	if err != nil {
		return err
	}
	if f.tree[r] != nil {
		return fmt.Errorf("%s: %w", p, fs.ErrExist)
	}
	return f.put(r, &node{mode: fs.ModeSymlink | 0o777, data: []byte(target)})
}

// Remove removes a path and all below it.
func (f *Files) Remove(p string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, _, err := f.at(p, false)
	if err != nil {
		return err
	}
	for q := range f.tree {
		if q == r || strings.HasPrefix(q, r+"/") {
			delete(f.tree, q)
		}
	}
	return nil
}
