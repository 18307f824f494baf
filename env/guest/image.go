package guest

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/repo"
)

// Sized is a base of that size whose files this machine does not have: they come from the image.
func Sized(bytes, files int64) Base { return Base{Bytes: bytes, Files: files} }

// copyBase is Unpack from the base volume. What was copied is what the volume was proven to hold, or it fails.
func (s *Sandbox) copyBase(ctx context.Context) error {
	answer, err := s.call(ctx, &wire.Request{Op: wire.OpCopy}, nil, nil)
	if err != nil {
		return err
	}
	if tree, err := treeOf(answer); err != nil {
		return err
	} else if tree.ID != s.copy {
		return fmt.Errorf("the workspace copied from the image has tree %s, its volume had %s", tree.ID, s.copy)
	}
	return nil
}

func treeOf(answer *wire.Answer) (*wire.Tree, error) {
	if answer.Tree == nil || len(answer.Tree.ID) != 40 {
		return nil, errors.New("the container's agent answered without a tree")
	}
	return answer.Tree, nil
}

// Tree is the git tree id of the workspace without caches and .git.
func (s *Sandbox) Tree(ctx context.Context) (string, error) {
	answer, err := s.call(ctx, &wire.Request{Op: wire.OpTree}, nil, nil)
	if err != nil {
		return "", err
	}
	tree, err := treeOf(answer)
	if err != nil {
		return "", err
	}
	return tree.ID, nil
}

// Archive writes the workspace without caches and .git as a tar stream.
func (s *Sandbox) Archive(ctx context.Context, w io.Writer) error {
	_, err := s.call(ctx, &wire.Request{Op: wire.OpArchive}, nil, func(_ *wire.Answer, r io.Reader) error {
		_, err := io.Copy(w, r)
		return err
	})
	return err
}

// ErrNoFiles is Fill's answer to an image that has no files at the wanted place.
var ErrNoFiles = errors.New("the image has no file there")

// Fill makes the served directory, a volume that the engine has filled from the image, the base volume of sandboxes:
// exactly m, whose files are sent only where the image has others; or, with a nil manifest, what the image holds, .git
// included. It returns the tree id of all of it and its size.
func (s *Sandbox) Fill(ctx context.Context, m *Manifest) (wire.Tree, error) {
	if m != nil {
		if err := s.shape(ctx, m); err != nil {
			return wire.Tree{}, err
		}
	}
	answer, err := s.call(ctx, &wire.Request{Op: wire.OpAdopt}, nil, nil)
	if err != nil {
		return wire.Tree{}, err
	}
	tree, err := treeOf(answer)
	switch {
	case err != nil:
		return wire.Tree{}, err
	case tree.Files == 0:
		return wire.Tree{}, ErrNoFiles
	case m != nil && tree.ID != m.ID:
		return wire.Tree{}, fmt.Errorf("the base volume has tree %s, not the wanted %s", tree.ID, m.ID)
	}
	return *tree, nil
}

func (s *Sandbox) shape(ctx context.Context, m *Manifest) error {
	answer, err := s.call(ctx, &wire.Request{Op: wire.OpShape}, func(w io.Writer) error {
		_, err := w.Write(m.files)
		return err
	}, nil)
	if err != nil {
		return err
	}
	if answer.Tree == nil || answer.Tree.Files == 0 {
		return ErrNoFiles
	}
	missing := map[string]bool{}
	for _, e := range answer.Entries {
		missing[string(e.Path)] = true
	}
	if len(missing) == 0 {
		return nil
	}
	_, err = s.call(ctx, &wire.Request{Op: wire.OpAdd}, func(w io.Writer) error {
		return m.base.packSome(ctx, w, func(p string) bool { return missing[p] })
	}, nil)
	return err
}

// Manifest lists the files of a base by content.
type Manifest struct {
	ID    string // git tree id of all of it, .git included
	base  Base
	files []byte // wire.File, as JSON, one after another
}

// NewManifest reads every file of a base.
func NewManifest(ctx context.Context, b Base) (*Manifest, error) {
	var out bytes.Buffer
	enc, index := json.NewEncoder(&out), repo.Index{}
	err := b.walk(ctx, func(p string, info fs.FileInfo, root *os.Root) error {
		mode := dirfs.GitMode(info.Mode())
		if mode == 0 {
			return nil
		}
		sum, err := blobOf(root, p, info)
		if err != nil {
			return err
		}
		index[p] = repo.Entry{Mode: mode, Hash: hex.EncodeToString(sum)}
		return enc.Encode(wire.File{Path: []byte(p), Mode: mode, Blob: sum})
	})
	return &Manifest{ID: index.TreeID(), base: b, files: out.Bytes()}, err
}

func blobOf(root *os.Root, p string, info fs.FileInfo) ([]byte, error) {
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := root.Readlink(p)
		h := dirfs.BlobHash(int64(len(target)))
		_, _ = io.WriteString(h, target) // a hash takes everything
		return h.Sum(nil), err
	}
	f, err := root.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := dirfs.BlobHash(info.Size())
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

// Manifests keeps manifests of bases by their directories, which nobody writes to once they are made.
type Manifests struct {
	mu   sync.Mutex
	made map[string]*Manifest
}

// Base measures a base, reading its files the first time; later calls do not look at the directory.
func (c *Manifests) Base(ctx context.Context, dir string) (Base, error) {
	m, err := c.Of(ctx, dir)
	if err != nil {
		return Base{}, err
	}
	return m.base, nil
}

// Of returns the manifest of the base in dir. Errors are those of OpenBase.
func (c *Manifests) Of(ctx context.Context, dir string) (*Manifest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.made[dir]; m != nil {
		return m, nil
	}
	b, err := OpenBase(ctx, dir)
	if err != nil {
		return nil, err
	}
	m, err := NewManifest(ctx, b)
	if err != nil {
		return nil, err
	}
	if c.made == nil || len(c.made) >= 64 { // a listing is a few MB
		c.made = map[string]*Manifest{}
	}
	c.made[dir] = m
	return m, nil
}
