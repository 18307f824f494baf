package docker

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/agent"
)

// engine is one Docker engine.
//
// Invariants: a sandbox is in open from before its container starts until the container is known to be gone; mu guards
// open, memory and the health; filling is held while the agent's volume is made, which happens once.
type engine struct {
	d     *Driver
	host  string
	local bool // on this machine, as far as the address tells
	cli   *client.Client

	podman atomic.Bool // set when it first answers; before, and where it does not, it counts as Docker's own

	mu       sync.Mutex
	open     map[string]*sandbox // by container id
	memory   map[string]bool     // containers of open that ran out of memory
	until    time.Time           // left alone up to then
	failures int                 // in a row
	reserved int                 // sandboxes that are being made

	bases bases // volumes with the repositories of images

	filling sync.Mutex
	filled  bool // the agent's volume holds the agent
	made    bool // it may be there
}

func newEngine(d *Driver, host string) (*engine, error) {
	opts := []client.Opt{client.WithHost(host), client.WithAPIVersionNegotiation()}
	if strings.HasPrefix(host, "tcp:") && d.cfg.TLSCA != "" {
		opts = append(opts, client.WithTLSClientConfig(d.cfg.TLSCA, d.cfg.TLSCert, d.cfg.TLSKey))
	}
	cli, err := client.NewClientWithOpts(opts...)
	if err != nil {
		return nil, milepost.E("env/docker: open", milepost.KindInvalid, "engine %s: %v", host, err)
	}
	e := &engine{d: d, host: host, local: strings.HasPrefix(host, "unix:"), cli: cli, open: map[string]*sandbox{}, memory: map[string]bool{}}
	e.bases.e, e.bases.known = e, map[string]*held{}
	return e, nil
}

// ping says whether the engine answers.
func (e *engine) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := e.cli.Ping(ctx); err != nil {
		return milepost.E("env/docker: ping", milepost.KindUnavailable, "the Docker engine %s does not answer: %v", e.host, err)
	}
	v, err := e.cli.ServerVersion(ctx)
	if err != nil {
		return engineError("version", err)
	}
	e.podman.Store(slices.ContainsFunc(v.Components, func(c types.ComponentVersion) bool { return strings.HasPrefix(c.Name, "Podman") }))
	return nil
}

func (e *engine) keep(s *sandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open[s.id] = s
}

func (e *engine) forget(s *sandbox) {
	e.mu.Lock()
	delete(e.open, s.id)
	delete(e.memory, s.id)
	e.mu.Unlock()
	s.held.release()
	e.d.changed()
}

// agentVolume returns the name of the volume that holds the agent, and makes it where it is not there yet. The image is
// only a means: something must be named for the container that the engine unpacks through, which never runs.
func (e *engine) agentVolume(ctx context.Context, image string) (string, error) {
	e.filling.Lock()
	defer e.filling.Unlock()
	name := "milepost-agent-" + e.d.me.name
	if e.filled {
		return name, nil
	}
	e.made = true
	labels := e.d.me.labels(time.Now())
	if _, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: labels}); err != nil {
		return "", engineError("create volume", err)
	}
	made, err := e.make(removeTime, &container.Config{Image: image, Labels: labels, Entrypoint: []string{agent.Path}},
		&container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: path.Dir(agent.Path)}}}, name)
	if err != nil {
		return "", err
	}
	defer e.removeQuietly(made.ID)
	program, err := agentTar(e.d.agent)
	if err != nil {
		return "", err
	}
	if err := e.cli.CopyToContainer(ctx, made.ID, path.Dir(agent.Path), program, container.CopyToContainerOptions{}); err != nil {
		return "", goneError("copy the agent", err)
	}
	e.filled = true
	return name, nil
}

// refill has the agent's volume made again.
func (e *engine) refill() {
	e.filling.Lock()
	defer e.filling.Unlock()
	e.filled = false
}

// remove ends a container and returns once it is gone.
func (e *engine) remove(ctx context.Context, id string) error {
	for begin := time.Now(); ; {
		err := e.cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		if !cerrdefs.IsConflict(err) { // it removes itself
			return engineError("remove container", err)
		}
		if time.Since(begin) > removeTime/2 {
			return milepost.E("env/docker: remove container", milepost.KindUnavailable, "engine %s: %s does not go away: %w", e.host, id, err)
		}
		if err := e.awaitGone(ctx, id); err != nil {
			return err
		}
	}
}

// awaitGone waits a moment for a container that is being removed.
func (e *engine) awaitGone(ctx context.Context, id string) error {
	wait, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	gone, failed := e.cli.ContainerWait(wait, id, container.WaitConditionRemoved)
	select {
	case <-gone:
	case err := <-failed:
		if !cerrdefs.IsNotFound(err) && wait.Err() == nil {
			return engineError("wait for container", err)
		}
	}
	return ctx.Err()
}

// close removes what the driver made on the engine besides sandboxes, which are closed before; where one could not be
// closed, it is tried here once more.
func (e *engine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	var err error
	if e.made {
		if err := e.removeMine(ctx); err != nil {
			return errors.Join(err, e.cli.Close())
		}
		if err = e.cli.VolumeRemove(ctx, "milepost-agent-"+e.d.me.name, true); cerrdefs.IsNotFound(err) {
			err = nil
		}
		err = errors.Join(engineError("remove volume", err), e.bases.close(ctx))
	}
	return errors.Join(err, e.cli.Close())
}

// removeMine removes every container of this driver.
func (e *engine) removeMine(ctx context.Context) error {
	mine := filters.NewArgs(filters.Arg("label", labelOwner+"="+e.d.me.name))
	list, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: mine})
	errs := []error{engineError("list containers", err)}
	for _, c := range list {
		errs = append(errs, e.remove(ctx, c.ID))
	}
	return errors.Join(errs...)
}

// describe names the engine for a person.
func (e *engine) describe(ctx context.Context) (string, error) {
	v, err := e.cli.ServerVersion(ctx)
	if err != nil {
		return "", engineError("version", err)
	}
	return fmt.Sprintf("%s (version %s, API %s)", e.host, v.Version, e.cli.ClientVersion()), nil
}
