package mine

import (
	"context"
	"path/filepath"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// walk yields the commits of a history as candidates, the newest first, until use says stop.
func walk(ctx context.Context, cfg Config, use func(c *candidate, reason string) (stop bool, err error)) (repository, error) {
	dir, err := filepath.Abs(cfg.Repo)
	if err != nil {
		return repository{}, milepost.Wrap("mine: history", milepost.KindInvalid, err)
	}
	r := repository{dir: dir}
	list, err := commits(ctx, r, cfg)
	if err != nil {
		return r, err
	}
	for _, line := range list {
		f := strings.Fields(line)
		c := &candidate{id: short(f[0]), source: "commit " + f[0], to: f[0]}
		reason := ""
		if len(f) != 2 {
			reason = reasonNoParent
		} else {
			c.from = f[1]
			if reason, err = c.read(ctx, cfg, r); err != nil {
				return r, err
			}
		}
		if stop, err := use(c, reason); stop || err != nil {
			return r, err
		}
	}
	return r, nil
}

// commits lists "COMMIT PARENT..." of a history.
func commits(ctx context.Context, r repository, cfg Config) ([]string, error) {
	out, err := r.git(ctx, "rev-list", "--topo-order", "--parents", "--max-count="+itoa(cfg.MaxCommits), cfg.Revision, "--")
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// read fills in a commit's parts.
func (c *candidate) read(ctx context.Context, cfg Config, r repository) (reason string, err error) {
	if reason, err = c.split(ctx, r); reason != "" || err != nil {
		return reason, err
	}
	if len(c.code) > cfg.MaxFiles || lines(c.patch()) > cfg.MaxLines {
		return reasonTooLarge, nil
	}
	message, err := r.git(ctx, "show", "-s", "--format=%B", c.to)
	c.message = string(message)
	return "", err
}
