package env

import (
	"context"
	"io"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
)

// Tree is the git tree id of the workspace as it is now, caches and .git left out (see [IsCache]). Its cost is a look at
// every file and reading those that changed. Kinds: invalid where the driver has no images, conflict, canceled, unavailable.
func (s *Sandbox) Tree(ctx context.Context) (id string, err error) {
	err = s.imaged(ctx, "env: tree", func(d driver.Imaged) error {
		id, err = d.Tree(ctx)
		return err
	})
	return id, err
}

// Archive writes the workspace as it is now as a tar stream of files and links, caches and .git left out. Kinds as of Tree.
func (s *Sandbox) Archive(ctx context.Context, w io.Writer) error {
	return s.imaged(ctx, "env: archive", func(d driver.Imaged) error { return d.Archive(ctx, w) })
}

func (s *Sandbox) imaged(ctx context.Context, op string, do func(driver.Imaged) error) error {
	d, ok := s.driver.(driver.Imaged)
	if !ok {
		return milepost.E(op, milepost.KindInvalid, "the driver of this sandbox has no images")
	}
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	defer s.use.end()
	return classify(op, do(d))
}
