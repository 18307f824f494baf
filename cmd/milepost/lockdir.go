package main

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// lockDir keeps a folder to this process until it ends or release is called: another one would take what lies in it for what
// a dead process left. Errors: KindConflict, KindUnavailable.
func lockDir(dir string) (release func() error, err error) {
	release, err = orchestrator.Lock(dir)
	if milepost.KindOf(err) == milepost.KindConflict {
		err = milepost.E("lock", milepost.KindConflict, "--dir %s is another process's; give another --dir: %w", dir, err)
	}
	return release, err
}
