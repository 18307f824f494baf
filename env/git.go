package env

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
)

// guarded are the parts of .git that say where the repository stands and how git behaves in it. Index, objects, logs
// and the notes git leaves in passing (ORIG_HEAD, COMMIT_EDITMSG, FETCH_HEAD) may differ.
var guarded = []string{
	".git/HEAD", ".git/packed-refs", ".git/config", ".git/config.worktree", ".git/shallow", ".git/commondir",
	".git/refs", ".git/hooks", ".git/info", ".git/worktrees", ".git/objects/info/alternates",
}

// GitMoved reports whether HEAD, a ref, the configuration, a hook or an info file under .git differs from the base, or
// .git is not the directory it was. Packing refs counts as moving them. Kinds: conflict, canceled, limit, unavailable.
func (s *Sandbox) GitMoved(ctx context.Context) (bool, error) {
	const op = "env: git moved"
	if err := s.begin(ctx, op); err != nil {
		return false, err
	}
	defer s.use.end()
	base, err := s.openBase()
	if err != nil || base == nil {
		return false, classify(op, err)
	}
	defer base.Close()
	moved, err := s.gitMoved(base)
	return moved, classify(op, err)
}

// openBase opens the base directory; nil where the Spec has none or it is no repository.
func (s *Sandbox) openBase() (*os.Root, error) {
	if s.spec.Base == "" {
		return nil, nil
	}
	base, err := os.OpenRoot(s.spec.Base)
	if err != nil {
		return nil, err
	}
	if info, err := base.Lstat(".git"); err != nil || !info.IsDir() {
		base.Close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	return base, nil
}

func (s *Sandbox) gitMoved(base *os.Root) (bool, error) {
	if info, err := s.driver.Stat(".git"); missing(err) || err == nil && !info.Mode.IsDir() {
		return true, nil
	} else if err != nil {
		return false, err
	}
	for _, p := range guarded {
		same, err := s.sameTree(base, p)
		if err != nil || !same {
			return !same, err
		}
	}
	return false, nil
}

// missing reports whether err says that there is nothing at a path.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// sameTree compares one path, and what is below it, by type and content. Empty directories do not count.
func (s *Sandbox) sameTree(base *os.Root, p string) (bool, error) {
	was, err := snapshot(p, func(p string) (FileInfo, error) { return baseStat(base, p) }, func(p string) ([]string, error) { return baseNames(base, p) })
	if err != nil {
		return false, err
	}
	now, err := snapshot(p, s.driver.Stat, func(p string) ([]string, error) { return names(s.driver.ReadDir(p)) })
	if err != nil || len(was) != len(now) {
		return false, err
	}
	for p, a := range was {
		b, ok := now[p]
		if !ok || a.Mode.Type() != b.Mode.Type() || a.Size != b.Size || a.Target != b.Target || (a.Mode^b.Mode)&0o111 != 0 {
			return false, nil
		}
		if !a.Mode.IsRegular() {
			continue
		}
		old, err := base.ReadFile(p)
		if err != nil {
			return false, err
		}
		data, _, err := s.driver.ReadFile(p, int64(len(old)))
		if errors.Is(err, driver.ErrTooLarge) || errors.Is(err, driver.ErrNotRegular) || missing(err) {
			return false, nil // changed while we looked
		}
		if err != nil || !bytes.Equal(old, data) {
			return false, err
		}
	}
	return true, nil
}

// snapshot maps every path at or below p that is not a directory to its description.
func snapshot(p string, stat func(string) (FileInfo, error), list func(string) ([]string, error)) (map[string]FileInfo, error) {
	out := map[string]FileInfo{}
	var visit func(p string) error
	visit = func(p string) error {
		info, err := stat(p)
		if missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !info.Mode.IsDir() {
			out[p] = info
			return nil
		}
		children, err := list(p)
		if err != nil {
			return err
		}
		for _, c := range children {
			if err := visit(path.Join(p, c)); err != nil {
				return err
			}
		}
		return nil
	}
	return out, visit(p)
}

func names(entries []FileInfo, err error) ([]string, error) {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = path.Base(e.Path)
	}
	return out, err
}

func baseStat(base *os.Root, p string) (FileInfo, error) {
	info, err := base.Lstat(p)
	if err != nil {
		return FileInfo{}, err
	}
	fi := FileInfo{Path: p, Mode: info.Mode(), Size: info.Size()}
	if info.Mode()&fs.ModeSymlink != 0 {
		fi.Target, err = base.Readlink(p)
	}
	return fi, err
}

func baseNames(base *os.Root, p string) ([]string, error) {
	f, err := base.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// RestoreGit brings what [Sandbox.GitMoved] watches back to the base and puts back any other file of the base's .git
// that is missing. The agent's index and objects stay. Kinds as of GitMoved.
func (s *Sandbox) RestoreGit(ctx context.Context) error {
	const op = "env: restore git"
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	defer s.use.end()
	base, err := s.openBase()
	if err != nil || base == nil {
		return classify(op, err)
	}
	defer base.Close()
	if err := s.restoreGit(base); err != nil {
		return classify(op, err)
	}
	moved, err := s.gitMoved(base)
	if err == nil && moved {
		return milepost.E(op, milepost.KindUnavailable, "the repository's git data still differs from the base; a running command may be changing it")
	}
	return classify(op, err)
}

func (s *Sandbox) restoreGit(base *os.Root) error {
	if info, err := s.driver.Stat(".git"); err == nil && !info.Mode.IsDir() {
		if err := s.driver.Remove(".git"); err != nil {
			return err
		}
	}
	for _, p := range guarded {
		same, err := s.sameTree(base, p)
		if err != nil {
			return err
		}
		if same {
			continue
		}
		if err := s.driver.Remove(p); err != nil && !missing(err) && !errors.Is(err, driver.ErrEscapes) {
			return err
		}
	}
	return s.copyMissing(base, ".git")
}

// copyMissing copies what the base has at or below p and the workspace has not.
func (s *Sandbox) copyMissing(base *os.Root, p string) error {
	info, err := baseStat(base, p)
	if err != nil {
		return err
	}
	if info.Mode.IsDir() {
		children, err := baseNames(base, p)
		if err != nil {
			return err
		}
		for _, c := range children {
			if err := s.copyMissing(base, path.Join(p, c)); err != nil {
				return err
			}
		}
		return nil
	}
	now, err := s.driver.Stat(p)
	if err == nil && now.Mode.Type() == info.Mode.Type() {
		return nil
	}
	if err != nil && !missing(err) {
		return err
	}
	if err == nil || errors.Is(err, syscall.ENOTDIR) {
		if err := s.driver.Remove(blocking(s, p)); err != nil {
			return err
		}
	}
	if info.Mode&fs.ModeSymlink != 0 {
		return s.driver.Symlink(info.Target, p)
	}
	data, err := base.ReadFile(p)
	if err != nil {
		return err
	}
	return s.driver.WriteFile(p, data, info.Mode.Perm())
}

// blocking returns the shortest prefix of p that is no directory in the workspace: what stands in the way of p.
func blocking(s *Sandbox, p string) string {
	for i, c := range p {
		if c != '/' {
			continue
		}
		if info, err := s.driver.Stat(p[:i]); err == nil && !info.Mode.IsDir() {
			return p[:i]
		}
	}
	return strings.TrimSuffix(p, "/")
}
