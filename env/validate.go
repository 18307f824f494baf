package env

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
)

// cleanPath validates a path inside the workspace: relative, slash separated, no NUL, no way out. "" and "." are the root.
func cleanPath(p string) (string, error) {
	switch {
	case strings.ContainsRune(p, 0):
		return "", fmt.Errorf("path %q contains a NUL byte", p)
	case len(p) > 4096:
		return "", fmt.Errorf("path of %d bytes is longer than 4096", len(p))
	case strings.HasPrefix(p, "/"):
		return "", fmt.Errorf("path %q is absolute; paths are relative to the workspace root", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", fmt.Errorf("path %q contains \"..\"; paths stay inside the workspace", p)
		}
		if len(part) > 255 {
			return "", fmt.Errorf("path %q has a name longer than 255 bytes", p)
		}
	}
	return path.Clean(p), nil // "" becomes "."
}

// filePath is cleanPath for an operation that needs something below the root.
func filePath(p string) (string, error) {
	c, err := cleanPath(p)
	if err == nil && c == "." {
		return "", fmt.Errorf("path %q is the workspace root; a path below it is needed", p)
	}
	return c, err
}

func validateLimits(l Limits) error {
	if err := l.Validate(); err != nil {
		return fmt.Errorf("limits.%w", err)
	}
	return nil
}

func validateEnv(vars map[string]string) error {
	for k, v := range vars {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("environment variable %q: a name has no '=' or NUL and is not empty, a value has no NUL", k)
		}
	}
	return nil
}

// reserved are the places inside a sandbox that a mount may not cover.
var reserved = []string{"/workspace", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev", "/sys", "/tmp"}

// validateWorkdir allows only places that a workspace may cover.
func validateWorkdir(s *Spec) error {
	for _, p := range append(slices.Clone(s.Hidden), s.Workdir) {
		if p != "" && (!path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, "\x00:,")) {
			return fmt.Errorf("%q is not a clean absolute path of the image, or has a colon or comma in it", p)
		}
	}
	if s.Workdir == "" {
		return nil
	}
	for _, r := range reserved {
		if r != "/workspace" && (s.Workdir == r || strings.HasPrefix(s.Workdir, r+"/")) {
			return fmt.Errorf("workdir %q lies in %s, a directory of the system", s.Workdir, r)
		}
	}
	if s.Image == "" {
		return fmt.Errorf("workdir %q is a directory of an image, and no image is named", s.Workdir)
	}
	return nil
}

func validateMount(m Mount) error {
	if !filepath.IsAbs(m.Host) || strings.ContainsRune(m.Host, 0) {
		return fmt.Errorf("mount %q: the host directory must be an absolute path", m.Host)
	}
	if !path.IsAbs(m.Path) || m.Path == "/" || path.Clean(m.Path) != m.Path || strings.ContainsRune(m.Path, 0) {
		return fmt.Errorf("mount path %q must be absolute, clean and not the root", m.Path)
	}
	for _, r := range reserved {
		if m.Path == r || strings.HasPrefix(m.Path, r+"/") {
			return fmt.Errorf("mount path %q lies in %s; use a path of its own, for example /mnt/trees", m.Path, r)
		}
	}
	return nil
}

func validateSpec(s *Spec) error {
	if s.Base != "" && (!filepath.IsAbs(s.Base) || strings.ContainsRune(s.Base, 0)) {
		return fmt.Errorf("base %q must be an absolute directory", s.Base)
	}
	if err := validateWorkdir(s); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if err := validateMount(m); err != nil {
			return err
		}
	}
	if err := validateEnv(s.Env); err != nil {
		return err
	}
	return validateLimits(s.Limits)
}

// maxArgs leaves bubblewrap, which counts to 9000, room for its own arguments.
const maxArgs = 8000

// validateCommand cleans cmd in place; limits become cmd over spec. Wall is not inherited where long is set.
func validateCommand(cmd *Command, spec *Spec, long bool) error {
	if len(cmd.Argv) == 0 || cmd.Argv[0] == "" {
		return errors.New("argv is empty; its first element is the program")
	}
	if len(cmd.Argv) > maxArgs {
		return fmt.Errorf("argv has %d elements; at most %d are allowed, use stdin or a file", len(cmd.Argv), maxArgs)
	}
	for i, a := range cmd.Argv {
		if strings.ContainsRune(a, 0) {
			return fmt.Errorf("argv[%d] contains a NUL byte", i)
		}
		if len(a) >= 128<<10 {
			return fmt.Errorf("argv[%d] has %d bytes; the system allows less than 131072, use stdin or a file", i, len(a))
		}
	}
	dir, err := cleanPath(cmd.Dir)
	if err != nil {
		return err
	}
	if err := validateEnv(cmd.Env); err != nil {
		return err
	}
	if err := validateLimits(cmd.Limits); err != nil {
		return err
	}
	wall := cmd.Limits.Wall
	cmd.Dir, cmd.Limits = dir, cmd.Limits.Or(spec.Limits)
	if long {
		cmd.Limits.Wall = wall
	}
	return nil
}

// classify gives a driver's error its kind; the only place that does. An error that has one keeps it.
func classify(op string, err error) error {
	var kind milepost.Kind
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		kind = milepost.KindCanceled
	case errors.Is(err, driver.ErrEscapes), errors.Is(err, fs.ErrPermission):
		kind = milepost.KindDenied
	case errors.Is(err, fs.ErrNotExist):
		kind = milepost.KindNotFound
	case errors.Is(err, driver.ErrTooLarge), errors.Is(err, driver.ErrFull), errors.Is(err, syscall.ENOSPC),
		errors.Is(err, syscall.EDQUOT):
		kind = milepost.KindLimit
	case errors.Is(err, driver.ErrNotRegular), errors.Is(err, driver.ErrInvalid), errors.Is(err, fs.ErrExist),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ENOTEMPTY):
		kind = milepost.KindInvalid
	default:
		kind = milepost.KindUnavailable
	}
	return milepost.Wrap(op, kind, err)
}
