package pypkg

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

// Env says which environment to make.
type Env struct {
	Package  string   // NAME==VERSION; its dependencies are installed, it is not
	Requires []string // what its tests need besides, as pip takes it; pytest is always there
	Python   string   // interpreter to make it with
}

// MakeEnv makes a virtual environment in dir, which must not exist, and returns its interpreter. pip resolves the
// package's dependencies by installing it, and takes it out again; nothing is left in pip's cache. The folder is not moved,
// since an environment knows its place: what a failure leaves is removed. Kinds: conflict, invalid, unavailable, canceled.
func MakeEnv(ctx context.Context, e Env, dir string) (python string, err error) {
	const op = "pypkg: make environment"
	if !Pinned(e.Package) {
		return "", milepost.E(op, milepost.KindInvalid, "package %q is not NAME==VERSION", e.Package)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if _, err := os.Lstat(dir); err == nil {
		return "", milepost.E(op, milepost.KindConflict, "%s exists already", dir)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	name := pin.FindStringSubmatch(e.Package)[1]
	python = filepath.Join(dir, "bin", "python")
	pip := []string{python, "-m", "pip", "--disable-pip-version-check", "--no-input"}
	for _, argv := range [][]string{
		{e.Python, "-m", "venv", dir},
		append(append(pip[:len(pip):len(pip)], "install", "--quiet", "--no-cache-dir", "pytest", e.Package), e.Requires...),
		append(pip[:len(pip):len(pip)], "uninstall", "--quiet", "--yes", name),
	} {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		if ctx.Err() != nil {
			return "", milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
		}
		if err != nil {
			return "", milepost.E(op, milepost.KindUnavailable, "%s: %w: %s", argv[1:], err, LastLines(out, 5))
		}
	}
	return python, nil
}
