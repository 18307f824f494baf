package agent

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/driver"
)

// file serves a request that works on files. A failed send means that the driver has gone; there is nobody to tell.
func (s *server) file(c *wire.Conn, req *wire.Request) {
	answer, after := wire.Answer{}, func() error { return nil }
	var err error
	p := string(req.Path)
	switch req.Op {
	case wire.OpStat:
		var info driver.FileInfo
		info, err = s.files.Stat(p)
		answer.Infos = []wire.Info{infoOf(info)}
	case wire.OpReadDir:
		var list []driver.FileInfo
		list, err = s.files.ReadDir(p)
		for _, info := range list {
			answer.Infos = append(answer.Infos, infoOf(info))
		}
	case wire.OpRead:
		answer, after, err = s.read(c, p, req.Limit)
	case wire.OpWrite:
		in := c.Payload()
		err = s.files.WriteFrom(p, in, req.Mode)
		_, _ = io.Copy(io.Discard, in) // the driver sends it whole, whatever became of it
	case wire.OpSymlink:
		err = s.files.Symlink(string(req.Target), p)
	case wire.OpRemove:
		err = s.files.Remove(p)
	case wire.OpUnpack:
		in := c.Payload()
		err = s.unpack(in)
		_, _ = io.Copy(io.Discard, in)
	case wire.OpAdopt:
		answer.Tree, err = s.adopt()
	case wire.OpShape:
		in := c.Payload()
		answer.Tree, answer.Entries, err = s.shape(in)
		_, _ = io.Copy(io.Discard, in)
	case wire.OpAdd:
		in := c.Payload()
		err = s.add(in)
		_, _ = io.Copy(io.Discard, in)
	case wire.OpCopy:
		answer.Tree, err = s.copyBase(Base)
	case wire.OpTree:
		answer.Tree, err = s.tree()
	case wire.OpArchive:
		after = func() error { return s.archive(c) }
	case wire.OpChanged:
		answer.Entries, err = s.changed()
	case wire.OpFetch:
		after = func() error { return s.fetch(c, req.Paths) }
	default:
		err = fmt.Errorf("operation %q: %w", req.Op, driver.ErrInvalid)
	}
	if err != nil {
		_ = c.SendJSON(wire.FrameAnswer, wire.Failed(err))
		return
	}
	if c.SendJSON(wire.FrameAnswer, answer) == nil {
		_ = after() // without an end frame the driver knows that it failed
	}
}

func infoOf(fi driver.FileInfo) wire.Info {
	return wire.Info{Path: []byte(fi.Path), Mode: fi.Mode, Size: fi.Size, Target: []byte(fi.Target)}
}

// read answers with the file's description; its content follows.
func (s *server) read(c *wire.Conn, p string, limit int64) (wire.Answer, func() error, error) {
	f, err := s.files.Open(p)
	if err != nil {
		return wire.Answer{}, nil, err
	}
	info, err := dirfs.Regular(f, p, limit)
	if err != nil {
		f.Close()
		return wire.Answer{}, nil, err
	}
	answer := wire.Answer{Infos: []wire.Info{{Path: []byte(p), Mode: info.Mode(), Size: info.Size()}}}
	return answer, func() error {
		defer f.Close()
		w := c.PayloadWriter()
		if _, err := io.Copy(w, io.LimitReader(f, limit+1)); err != nil {
			return err
		}
		return w.Close()
	}, nil
}

// unpack makes the workspace what a tar stream says, and the index of it. It is called while no command runs.
func (s *server) unpack(in io.Reader) error {
	if err := s.empty(); err != nil {
		return err
	}
	sums, err := s.untar(in)
	if err != nil {
		return err
	}
	made, err := s.stampAll(sums)
	if err != nil {
		return err
	}
	s.keep(made)
	return nil
}

// keep makes an index the workspace's.
func (s *server) keep(made index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = made
}

// untar adds what a tar stream says to the workspace and returns the sums of its files and links.
func (s *server) untar(in io.Reader) (map[string]sum, error) {
	sums := map[string]sum{}
	tr := tar.NewReader(in)
	var dirs []*tar.Header
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("tar: %w", err)
		}
		if err := s.entry(h, tr, sums); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, h)
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- { // last, since a mode may forbid writing and entries change the time
		name := path.Clean(dirs[i].Name)
		if err := errors.Join(s.root.Chmod(name, fs.FileMode(dirs[i].Mode).Perm()), s.root.Chtimes(name, dirs[i].ModTime, dirs[i].ModTime)); err != nil {
			return nil, dirfs.Escapes(err)
		}
	}
	return sums, nil
}

// entry makes one file of a tar stream. A name that leads out of the workspace, through ".." or a link, is refused; so is
// whatever is neither file, directory nor symbolic link.
func (s *server) entry(h *tar.Header, in io.Reader, sums map[string]sum) error {
	name := path.Clean(h.Name)
	if path.IsAbs(h.Name) || name == ".." || strings.HasPrefix(name, "../") {
		return fmt.Errorf("tar entry %q: %w", h.Name, driver.ErrEscapes)
	}
	if name == "." {
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := s.root.MkdirAll(dir, 0o755); err != nil {
			return dirfs.Escapes(err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return dirfs.Escapes(s.root.MkdirAll(name, 0o755))
	case tar.TypeSymlink:
		sums[name] = sumOf([]byte(h.Linkname))
		return dirfs.Escapes(s.root.Symlink(h.Linkname, name))
	case tar.TypeReg:
		return dirfs.Escapes(s.entryFile(name, h, in, sums))
	}
	return fmt.Errorf("tar entry %q of type %q: only files, directories and symbolic links are allowed: %w", h.Name, h.Typeflag, driver.ErrInvalid)
}

func (s *server) entryFile(name string, h *tar.Header, in io.Reader, sums map[string]sum) error {
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	hash := dirfs.BlobHash(h.Size)
	_, err = io.Copy(io.MultiWriter(f, hash), in)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode).Perm())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	sums[name] = sum(hash.Sum(nil))
	return s.root.Chtimes(name, h.ModTime, h.ModTime)
}

// empty removes everything that commands can have written.
func (s *server) empty() error {
	if err := emptyDir(s.root); err != nil {
		return err
	}
	for _, dir := range s.temps {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(emptyDir(root), root.Close()); err != nil {
			return err
		}
	}
	return nil
}

// emptyDir removes everything in a directory. What a command made unwritable is made writable first.
func emptyDir(root *os.Root) error {
	entries, err := dirfs.New(root).ReadDir(".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		err := root.RemoveAll(e.Path)
		if errors.Is(err, fs.ErrPermission) {
			unlock(root, e.Path)
			err = root.RemoveAll(e.Path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unlock makes every directory at and below p writable, as far as that goes; the removal that follows reports.
func unlock(root *os.Root, p string) {
	if info, err := root.Lstat(p); err != nil || !info.IsDir() {
		return
	}
	_ = root.Chmod(p, 0o700)
	entries, _ := dirfs.New(root).ReadDir(p)
	for _, e := range entries {
		unlock(root, e.Path)
	}
}

// fetch sends files and links as a tar stream. What is no longer there, or has become something else, is left out.
func (s *server) fetch(c *wire.Conn, paths [][]byte) error {
	w := c.PayloadWriter()
	tw := tar.NewWriter(w)
	for _, p := range paths {
		if err := s.pack(tw, path.Clean(string(p))); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), w.Close())
}

func (s *server) pack(tw *tar.Writer, p string) error {
	info, err := s.files.Stat(p)
	if err != nil {
		return nil //nolint:nilerr // left out
	}
	h := &tar.Header{Name: p, Mode: int64(info.Mode.Perm()), Format: tar.FormatPAX}
	if info.Mode&fs.ModeSymlink != 0 {
		h.Typeflag, h.Linkname = tar.TypeSymlink, info.Target
		return tw.WriteHeader(h)
	}
	f, err := s.openLocked(p)
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err != nil || f == nil {
		return nil //nolint:nilerr // left out
	}
	defer f.Close()
	st, err := dirfs.Regular(f, p, 1<<62)
	if err != nil {
		return nil //nolint:nilerr // left out
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(tw, zeros{}, h.Size-n) // it shrank meanwhile
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
