package main

import (
	"context"
	"errors"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/apptainer"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// world is where agents and tests live: sandboxes, base repositories, file contents and the runner of tests.
type world struct {
	dir   string // absolute
	env   *env.Env
	bases *repo.Store
	blobs *repo.Blobs
	tests *testrun.Runner
	ready func(context.Context) error // whether sandboxes can be had; nil where the driver does not tell
}

// openSandboxes opens the driver that the configuration chooses. Those of this machine live in dir where no root is named.
func openSandboxes(ctx context.Context, cfg configs.Sandbox, dir string) (driver.Driver, error) {
	switch cfg.Driver {
	case configs.SandboxDocker:
		return docker.New(ctx, cfg.Docker)
	case configs.SandboxApptainer:
		if cfg.Apptainer.Root == "" {
			cfg.Apptainer.Root = dir
		}
		return apptainer.New(ctx, cfg.Apptainer)
	}
	if cfg.Root == "" {
		cfg.Root = dir
	}
	return local.New(cfg.Config)
}

// openWorld keeps sandboxes and repositories below dir.
func openWorld(cfg configs.Run, dir string) (*world, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, milepost.Wrap("open world", milepost.KindInvalid, err)
	}
	w := &world{dir: dir}
	boxes, err := openSandboxes(context.Background(), cfg.Sandbox, filepath.Join(dir, "sandboxes"))
	if err != nil {
		return nil, err
	}
	if r, ok := boxes.(interface{ Ready(context.Context) error }); ok {
		w.ready = r.Ready
	}
	w.env = env.New(boxes)
	if w.bases, err = repo.NewStore(filepath.Join(dir, "bases")); err == nil {
		w.blobs, err = repo.NewBlobs(filepath.Join(dir, "blobs"))
	}
	if err != nil {
		return nil, errors.Join(err, w.env.Close())
	}
	w.tests = testrun.New(cfg.Tests, w.env, w.bases, w.blobs, testrun.WithEvaluation(grade.Evaluation{}))
	return w, nil
}

func (w *world) close() error { return errors.Join(w.tests.Close(), w.env.Close()) }
