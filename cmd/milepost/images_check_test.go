package main

import (
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/rollout/remote"
)

// A driver that cannot take repositories out of images is refused before the first episode, not by each of them.
func TestTasksInImagesNeedADriverThatReadsThem(t *testing.T) {
	inImage, files := &milepost.Task{ID: "in-image", Workdir: "/testbed"}, &milepost.Task{ID: "files"}
	for _, c := range []struct {
		driver string
		mode   remote.Mode
		tasks  []*milepost.Task
		ok     bool
	}{
		{configs.SandboxLocal, remote.ModeLocal, []*milepost.Task{files}, true},
		{configs.SandboxLocal, remote.ModeLocal, []*milepost.Task{files, inImage}, false},
		{configs.SandboxApptainer, remote.ModeBoth, []*milepost.Task{inImage}, false},
		{configs.SandboxLocal, remote.ModeRemote, []*milepost.Task{inImage}, true}, // its workers have drivers of their own
		{configs.SandboxDocker, remote.ModeLocal, []*milepost.Task{inImage}, true},
	} {
		cfg := configs.Default()
		cfg.Sandbox.Driver, cfg.Workers.Mode = c.driver, c.mode
		err := checkImages(cfg, c.tasks)
		if c.ok != (err == nil) || err != nil && (milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "task in-image lies in an image (workdir /testbed); allowed with such tasks: docker")) {
			t.Errorf("%s, workers.mode %s: %v", c.driver, c.mode, err)
		}
	}
}
