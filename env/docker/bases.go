package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
)

// bases are the base volumes of one engine. A sandbox whose repository lies in its image has a tmpfs at that place, which
// hides the image's files. So the engine first copies them into a volume (what it does with a new volume that is mounted
// over files of an image); the agent, in a container in which no command ever runs, makes the volume exactly the base and
// proves it; and every sandbox copies its workspace from there, without a byte of it on the connection.
//
// Invariants: mu guards known and the counts in it; one filling at a time for each volume, by its once; a volume is only
// removed while nobody uses it; what a command can see of a volume is what its own workspace started with.
type bases struct {
	e *engine

	mu    sync.Mutex
	known map[string]*held
}

// held is one base volume.
type held struct {
	of    *bases
	key   string
	name  string // of the volume
	uses  int
	spent time.Time // when it was last given back
	stale bool      // no new sandbox gets it; removed when nobody uses it

	once sync.Once
	err  error
	tree string     // id of everything in it
	base guest.Base // its size
}

// keepBases is how many base volumes that nobody uses are kept on an engine. Each is as large as a repository.
const keepBases = 8

// fillTime bounds the filling of one volume.
const fillTime = 10 * time.Minute

// take returns the base volume of a sandbox, filled; nil where the Spec names no Workdir. It is given back by release.
func (b *bases) take(ctx context.Context, image string, spec *driver.Spec, from guest.Base) (*held, error) {
	if spec.Workdir == "" {
		return nil, nil
	}
	var m *guest.Manifest
	content := "image"
	if from.Dir() != "" {
		var err error
		if m, err = b.e.d.manifests.Of(ctx, from.Dir()); err != nil {
			return nil, fmt.Errorf("read the base %s: %w", from.Dir(), err)
		}
		content = m.ID
	}
	key := strings.Join([]string{image, spec.Workdir, content}, " ")
	b.mu.Lock()
	h := b.known[key]
	if h == nil {
		h = &held{of: b, key: key, name: fmt.Sprintf("milepost-base-%s-%d", b.e.d.me.name, b.e.d.next.Add(1))}
		b.known[key] = h
	}
	h.uses++
	b.mu.Unlock()
	h.once.Do(func() {
		fill, cancel := context.WithTimeout(b.e.d.background, fillTime) // others wait for it, whoever gives up
		defer cancel()
		h.err = b.fill(fill, h, image, spec.Workdir, m)
	})
	if h.err != nil {
		h.release()
		return nil, h.err
	}
	return h, nil
}

// mount shows the volume to a sandbox.
func (h *held) mount() mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Source: h.name, Target: agent.Base, ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}
}

// release gives a volume back; those that were not used for longest go. A nil one is none.
func (h *held) release() {
	if h == nil {
		return
	}
	b := h.of
	b.mu.Lock()
	h.uses--
	h.spent = time.Now()
	gone := b.surplus()
	if h.stale && h.uses == 0 {
		gone = append(gone, h)
	}
	b.mu.Unlock()
	b.removeAll(gone)
}

// surplus takes volumes out that are to be removed: those that could not be filled, and the idle ones beyond keepBases.
func (b *bases) surplus() (gone []*held) {
	for {
		var oldest *held
		idle := 0
		for _, h := range b.known {
			if h.uses > 0 {
				continue
			}
			if h.err != nil {
				oldest, idle = h, keepBases+1
				break
			}
			if idle++; oldest == nil || h.spent.Before(oldest.spent) {
				oldest = h
			}
		}
		if idle <= keepBases {
			return gone
		}
		delete(b.known, oldest.key)
		gone = append(gone, oldest)
	}
}

// lost has every volume made again for new sandboxes: somebody may have removed one.
func (b *bases) lost() {
	b.mu.Lock()
	var gone []*held
	for _, h := range b.known {
		h.stale = true
		if h.uses == 0 {
			gone = append(gone, h)
		}
	}
	clear(b.known)
	b.mu.Unlock()
	b.removeAll(gone)
}

// removeAll removes volumes in the background. What is left goes with the driver, or with the next one on this engine.
func (b *bases) removeAll(gone []*held) {
	for _, g := range gone {
		b.e.d.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), removeTime)
			defer cancel()
			_ = b.remove(ctx, g)
		})
	}
}

func (b *bases) remove(ctx context.Context, h *held) error {
	err := b.e.cli.VolumeRemove(ctx, h.name, true)
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	return engineError("remove volume", err)
}

// close removes every volume. No sandbox is left.
func (b *bases) close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for key, h := range b.known {
		errs = append(errs, b.remove(ctx, h))
		delete(b.known, key)
	}
	return errors.Join(errs...)
}

// fill makes the volume and its content. m is nil for what the image holds.
func (b *bases) fill(ctx context.Context, h *held, image, workdir string, m *guest.Manifest) error {
	e := b.e
	agents, err := e.agentVolume(ctx, image)
	if err != nil {
		return err
	}
	labels := e.d.me.labels(time.Now())
	if _, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: h.name, Labels: labels}); err != nil {
		return engineError("create volume", err)
	}
	c := e.containerConfig(image, "base of "+workdir, workdir)
	c.User = "0:0" // files of an image need not be readable for others; the agent alone runs here
	no := false
	host := &container.HostConfig{
		AutoRemove: true, ReadonlyRootfs: true, NetworkMode: "none", CapDrop: []string{"ALL"}, CapAdd: []string{"DAC_OVERRIDE", "FOWNER"}, Init: &no,
		SecurityOpt: []string{"no-new-privileges"}, LogConfig: container.LogConfig{Type: "none"}, Runtime: e.d.cfg.Runtime, IpcMode: "private",
		RestartPolicy: container.RestartPolicy{Name: "no"},
		Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: agents, Target: path.Dir(agent.Path), ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true}},
			{Type: mount.TypeVolume, Source: h.name, Target: workdir},
		},
	}
	s, err := e.start(ctx, c, host, nil, func(s *sandbox, link *guest.Link) error {
		s.Sandbox = guest.New(s, link, guest.Base{}, guest.Limits{})
		s.Serve(workdir, "")
		tree, err := s.Fill(ctx, m)
		h.tree, h.base = tree.ID, guest.Sized(tree.Bytes, tree.Files)
		return err
	})
	if errors.Is(err, guest.ErrNoFiles) {
		return milepost.E("env/docker: base", milepost.KindInvalid, "image %s has no files in %s, where the task says its repository lies", image, workdir)
	}
	if err != nil {
		return fmt.Errorf("fill a volume from %s of image %s: %w", workdir, image, err)
	}
	return s.Close()
}
