package apptainer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/distribution/reference"
	"golang.org/x/sync/singleflight"

	"github.com/milepost-rl/milepost"
)

// parseImage returns what names an image for the program: an absolute path, or a URI to pull.
func parseImage(image string) (string, error) {
	if filepath.IsAbs(image) {
		return filepath.Clean(image), nil
	}
	scheme, name, ok := strings.Cut(image, "://")
	if !ok {
		scheme, name = "docker", image
	}
	switch scheme {
	case "docker":
		if _, err := reference.ParseNormalizedNamed(name); err != nil {
			return "", fmt.Errorf("%q: %w; it must be a path of a SIF file or folder, or a reference such as docker://python:3.11", image, err)
		}
	case "oras", "library":
		if name == "" || strings.HasPrefix(name, "-") {
			return "", fmt.Errorf("%q names nothing", image)
		}
	default:
		return "", fmt.Errorf("%q: images come from a path, docker://, oras:// or library://", image)
	}
	return scheme + "://" + name, nil
}

// image is what a task's environment identity means here.
func (c *Config) image(identity string) (string, error) {
	const op = "env/apptainer: create"
	if identity == "" || identity == "local" || strings.HasPrefix(identity, "local:") {
		if c.Image == "" {
			return "", milepost.E(op, milepost.KindInvalid, "the task's image is %q and the configuration names no image; set sandbox.apptainer.image", identity)
		}
		identity = c.Image
	}
	image, err := parseImage(identity)
	if err != nil {
		return "", milepost.E(op, milepost.KindInvalid, "image %w", err)
	}
	return image, nil
}

// images keeps pulled images as SIF files, under names made of their URI. What is there is whole: a pull goes to another
// name first.
type images struct {
	dir     string
	pull    string
	program string
	env     []string
	pulls   singleflight.Group // by path
}

// path returns the file or folder of an image, after a pull where it is not there. Kinds: not_found, unavailable.
func (s *images) path(ctx context.Context, image string) (string, error) {
	const op = "env/apptainer: image"
	if filepath.IsAbs(image) {
		if _, err := os.Stat(image); err != nil {
			return "", milepost.E(op, milepost.KindNotFound, "%w; sandbox.apptainer.image or the task names it", err)
		}
		return image, nil
	}
	sum := sha256.Sum256([]byte(image))
	p := filepath.Join(s.dir, hex.EncodeToString(sum[:16])+".sif")
	if _, err := os.Stat(p); err == nil {
		return p, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if s.pull == PullNever {
		return "", milepost.E(op, milepost.KindNotFound, "%s is not in %s, and sandbox.apptainer.pull is never; fetch it with: %s pull %s %s", image, s.dir, s.program, p, image)
	}
	got := s.pulls.DoChan(p, func() (any, error) { return nil, s.fetch(context.WithoutCancel(ctx), image, p) })
	select {
	case r := <-got:
		return p, r.Err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// fetch pulls an image to a temporary name and renames it.
func (s *images) fetch(ctx context.Context, image, to string) error {
	const op = "env/apptainer: pull"
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(s.dir, ".pull-")
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(ctx, pullTime)
	defer cancel()
	file := filepath.Join(tmp, "image.sif")
	cmd := exec.CommandContext(ctx, s.program, "--quiet", "pull", file, image)
	cmd.Env, cmd.Dir = s.env, tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		kind := milepost.KindUnavailable
		for _, words := range []string{"manifest unknown", "not found", "name unknown", "access to the resource is denied", "unauthorized"} { // the registries' words
			if strings.Contains(strings.ToLower(said.String()), words) {
				kind = milepost.KindNotFound
			}
		}
		return milepost.E(op, kind, "%s: %w: %s", image, err, lastLines(said.String()))
	}
	return milepost.Wrap(op, milepost.KindUnavailable, os.Rename(file, to))
}

// lastLines is the end of what a program said, for an error.
func lastLines(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-1000):]
}
