package docker

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/go-units"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
)

// resources are the limits in the words of an engine.
func resources(l guest.Limits) container.Resources {
	r := container.Resources{Memory: l.Memory, MemorySwap: l.Memory}
	if l.Procs > 0 {
		r.PidsLimit = &l.Procs
	}
	return r
}

// tmpfs are the mount options of the places that can be written. In all they hold less than the memory limit.
func (e *engine) tmpfs(l driver.Limits, root string, b guest.Base) map[string]string {
	d := e.d
	disk, tmp := guest.Room(l, d.cfg.tmpSize())
	work := "rw,exec,nosuid,nodev"
	switch {
	case d.uid == "0" && d.gid == "0":
		work += ",mode=0755"
	case e.podman.Load(): // does not know owners; git then finds that the directory is another's
		work += ",mode=1777"
	default:
		work += ",mode=0755,uid=" + d.uid + ",gid=" + d.gid
	}
	temp := fmt.Sprintf("rw,exec,nosuid,nodev,mode=1777,size=%d", tmp)
	if disk > 0 {
		work += fmt.Sprintf(",size=%d", b.Bytes+disk)
	}
	if !e.podman.Load() { // there the number of files is bounded by their share of the memory limit alone
		temp += fmt.Sprintf(",nr_inodes=%d", guest.FilesIn(tmp))
		if disk > 0 {
			work += fmt.Sprintf(",nr_inodes=%d", b.Files+guest.FilesIn(disk))
		}
	}
	return map[string]string{root: work, "/tmp": temp}
}

// containerConfig says what process 1 is and what its environment holds besides the image's.
func (e *engine) containerConfig(image, name, root string) *container.Config {
	d := e.d
	labels := d.me.labels(time.Now())
	labels[labelSandbox] = name
	c := &container.Config{
		Image: image, Hostname: "sandbox", User: d.cfg.user(), Entrypoint: agent.ArgvAt(d.cfg.Lease, root), Cmd: []string{}, WorkingDir: "/",
		Env:       []string{"HOME=/tmp", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"},
		OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true, AttachStderr: true, Labels: labels,
	}
	if !e.podman.Load() { // podman needs systemd to leave them out
		c.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	}
	return c
}

// hostConfig says what a container may do.
func (e *engine) hostConfig(spec *driver.Spec, b guest.Base, volume string) *container.HostConfig {
	d, no := e.d, false
	network := container.NetworkMode("none")
	if spec.Network {
		network = container.NetworkMode(d.cfg.Network)
	}
	h := &container.HostConfig{
		AutoRemove: true, ReadonlyRootfs: true, NetworkMode: network, CapDrop: []string{"ALL"}, Privileged: false, Init: &no,
		SecurityOpt: []string{"no-new-privileges"}, LogConfig: container.LogConfig{Type: "none"}, Tmpfs: e.tmpfs(spec.Limits, rootOf(spec), b),
		Runtime: d.cfg.Runtime, IpcMode: "private", RestartPolicy: container.RestartPolicy{Name: "no"},
		Mounts:    []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: path.Dir(agent.Path), ReadOnly: true, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}},
		Resources: resources(guest.LimitsOf(spec.Limits, b)),
	}
	_, h.ShmSize = guest.Room(spec.Limits, d.cfg.tmpSize())
	h.NanoCPUs = int64(d.cfg.CPUs * 1e9)
	h.Ulimits = []*units.Ulimit{{Name: "core"}, {Name: "nofile", Soft: maxFiles, Hard: maxFiles}}
	if e.podman.Load() { // which would otherwise set as many as no process without privileges may set
		h.Ulimits = append(h.Ulimits, &units.Ulimit{Name: "nproc", Soft: maxThreads, Hard: maxThreads})
	}
	if len(spec.Hidden) > 0 { // the engine's own are replaced by a list
		h.MaskedPaths = append(slices.Clone(maskedPaths), spec.Hidden...)
	}
	for _, m := range spec.Mounts {
		h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Host, Target: m.Path, ReadOnly: !m.Writable})
	}
	return h
}

// maskedPaths are those that an engine hides where nothing is said.
var maskedPaths = []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
	"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}

// rootOf is where the workspace lies.
func rootOf(spec *driver.Spec) string {
	if spec.Workdir != "" {
		return spec.Workdir
	}
	return agent.Workspace
}

// maxFiles is how many files a process may have open, which the engines would otherwise set as high as the system allows.
const maxFiles = 4096

// maxThreads is the same for processes of one user of the machine; it bounds nothing here, the container's own limit does.
const maxThreads = 32768

// checkMounts refuses what an engine could not show.
func (e *engine) checkMounts(mounts []driver.Mount) error {
	for _, m := range mounts {
		if !e.local {
			return fmt.Errorf("mount %q: the engine %s may be on another machine, which does not have this folder; resident tests (tests.resident) "+
				"need engines on unix:// sockets: %w", m.Host, e.host, driver.ErrInvalid)
		}
		if info, err := os.Stat(m.Host); err != nil {
			return fmt.Errorf("mount: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("mount %q is not a directory: %w", m.Host, driver.ErrInvalid)
		}
	}
	return nil
}

// removeTime bounds what must be done even where the caller has given up.
const removeTime = time.Minute

// create makes and starts one container and fills its workspace. On failure nothing is left.
func (e *engine) create(ctx context.Context, spec *driver.Spec, image string, b guest.Base) (s *sandbox, err error) {
	if err := e.checkMounts(spec.Mounts); err != nil {
		return nil, err
	}
	if err := e.d.pulls.ensure(ctx, e, image); err != nil {
		return nil, err
	}
	volume, err := e.agentVolume(ctx, image)
	if err != nil {
		return nil, err
	}
	held, err := e.bases.take(ctx, image, spec, b)
	if err != nil {
		return nil, err
	}
	if held != nil {
		b = held.base
	}
	host := e.hostConfig(spec, b, volume)
	if held != nil {
		host.Mounts = append(host.Mounts, held.mount())
	}
	return e.start(ctx, e.containerConfig(image, spec.Name, rootOf(spec)), host, held, func(s *sandbox, link *guest.Link) error {
		s.Sandbox = guest.New(s, link, b, guest.LimitsOf(spec.Limits, b))
		if held == nil {
			s.Serve(rootOf(spec), "")
		} else {
			s.Serve(spec.Workdir, held.tree)
		}
		return s.Unpack(ctx)
	})
}

// start makes and starts one container and connects it; use makes the sandbox of it. On failure nothing is left. held,
// which may be nil, is given back at the end of the container.
func (e *engine) start(ctx context.Context, c *container.Config, h *container.HostConfig, held *held, use func(*sandbox, *guest.Link) error) (s *sandbox, err error) {
	bound := removeTime
	if held == nil { // the engine may copy files of the image into a volume
		bound = fillTime
	}
	made, err := e.make(bound, c, h, fmt.Sprintf("milepost-%s-%d", e.d.me.name, e.d.next.Add(1)))
	if err != nil {
		held.release()
		return nil, err
	}
	s = &sandbox{e: e, id: made.ID, held: held}
	e.keep(s)
	defer func() {
		if err != nil {
			if closeErr := s.Close(); closeErr != nil {
				err = fmt.Errorf("%w; and the container is left: %w", err, closeErr)
			}
			s = nil
		}
	}()
	a, err := attach(ctx, e.cli, made.ID)
	if err != nil {
		return s, err
	}
	s.attached = a
	if err := e.cli.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		if strings.Contains(err.Error(), agent.Path) { // the engine takes the want of the agent for the image's fault
			return s, milepost.E("env/docker: create", milepost.KindUnavailable, "start container: %w", err)
		}
		return s, goneError("start container", err)
	}
	link, err := guest.NewLink(a, e.d.cfg.Lease)
	if err != nil {
		return s, err
	}
	return s, use(s, link)
}

// make makes a container. It cannot be cancelled: the engine would go on, and the container come to be after it was looked
// for and not found.
func (e *engine) make(bound time.Duration, c *container.Config, h *container.HostConfig, name string) (container.CreateResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	made, err := e.cli.ContainerCreate(ctx, c, h, nil, nil, name)
	if err != nil && ctx.Err() != nil {
		err = milepost.E("env/docker: create container", milepost.KindUnavailable, "the engine %s did not answer within %s: %v", e.host, bound, err)
	}
	return made, engineError("create container", err)
}

// removeQuietly removes a container that may be there, after another failure that matters more.
func (e *engine) removeQuietly(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	_ = e.remove(ctx, id)
}
