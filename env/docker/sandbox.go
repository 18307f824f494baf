package docker

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/driver"
)

// sandbox implements driver.Sandbox: one container.
//
// Invariants: running holds every command that is not known to be over; limits are those that the container has, and are
// changed under limiting, together with what counts who needs them; after closing is set the end of the connection is no
// failure.
type sandbox struct {
	e        *engine
	spec     *driver.Spec
	id       string
	base     base
	attached *attached // nil until it is
	link     *link     // nil until the container runs

	limiting sync.Mutex
	limits   limits

	mu      sync.Mutex
	running map[*process]struct{}
	closing bool
}

func (s *sandbox) Root() string                 { return agent.Workspace }
func (s *sandbox) Inside(m driver.Mount) string { return m.Path }

// call does one request on the sandbox's files.
func (s *sandbox) call(ctx context.Context, req *wire.Request, send func(io.Writer) error, receive func(*wire.Answer, io.Reader) error) (*wire.Answer, error) {
	answer, err := s.link.call(ctx, req, send, receive)
	return answer, s.explain(err)
}

// explain says why a container does not answer, where that is why: one that ran out of memory as a whole is the task's
// doing and not the engine's.
func (s *sandbox) explain(err error) error {
	if err == nil || !s.link.session.IsClosed() {
		return err
	}
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	if !closing && s.e.ranOut(s.id) {
		return milepost.E("env/docker", milepost.KindMemory, "the container ran out of memory and ended")
	}
	if said := s.attached.complain.String(); said != "" {
		return fmt.Errorf("%w; its last words: %s", err, said)
	}
	return err
}

// unpack fills the workspace with the base.
func (s *sandbox) unpack(ctx context.Context) error {
	_, err := s.call(ctx, &wire.Request{Op: wire.OpUnpack}, func(w io.Writer) error { return s.base.pack(ctx, w) }, nil)
	return err
}

func (s *sandbox) Stat(p string) (driver.FileInfo, error) {
	answer, err := s.call(context.Background(), &wire.Request{Op: wire.OpStat, Path: []byte(p)}, nil, nil)
	if err != nil {
		return driver.FileInfo{}, err
	}
	return oneInfo(answer)
}

func oneInfo(answer *wire.Answer) (driver.FileInfo, error) {
	if len(answer.Infos) != 1 {
		return driver.FileInfo{}, fmt.Errorf("the container's agent answered with %d descriptions", len(answer.Infos))
	}
	return infoOf(answer.Infos[0]), nil
}

func infoOf(i wire.Info) driver.FileInfo {
	return driver.FileInfo{Path: string(i.Path), Mode: i.Mode, Size: i.Size, Target: string(i.Target)}
}

func (s *sandbox) ReadDir(p string) ([]driver.FileInfo, error) {
	answer, err := s.call(context.Background(), &wire.Request{Op: wire.OpReadDir, Path: []byte(p)}, nil, nil)
	if err != nil {
		return nil, err
	}
	out := make([]driver.FileInfo, len(answer.Infos))
	for i, info := range answer.Infos {
		out[i] = infoOf(info)
	}
	return out, nil
}

func (s *sandbox) ReadFile(p string, limit int64) ([]byte, fs.FileMode, error) {
	var data []byte
	answer, err := s.call(context.Background(), &wire.Request{Op: wire.OpRead, Path: []byte(p), Limit: limit}, nil, func(_ *wire.Answer, r io.Reader) error {
		var err error
		if data, err = io.ReadAll(io.LimitReader(r, limit+1)); err == nil && int64(len(data)) > limit {
			return fmt.Errorf("%s has more than %d bytes: %w", p, limit, driver.ErrTooLarge)
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	info, err := oneInfo(answer)
	return data, info.Mode, err
}

func (s *sandbox) WriteFile(p string, data []byte, mode fs.FileMode) error {
	_, err := s.call(context.Background(), &wire.Request{Op: wire.OpWrite, Path: []byte(p), Mode: mode}, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}, nil)
	return err
}

func (s *sandbox) Symlink(target, p string) error {
	_, err := s.call(context.Background(), &wire.Request{Op: wire.OpSymlink, Path: []byte(p), Target: []byte(target)}, nil, nil)
	return err
}

func (s *sandbox) Remove(p string) error {
	_, err := s.call(context.Background(), &wire.Request{Op: wire.OpRemove, Path: []byte(p)}, nil, nil)
	return err
}

// Changes implements driver.Sandbox. The agent lists what differs; what is not skipped is then fetched in one go.
func (s *sandbox) Changes(ctx context.Context, skip func(string) bool, limit int64) ([]driver.Change, error) {
	answer, err := s.call(ctx, &wire.Request{Op: wire.OpChanged}, nil, nil)
	if err != nil {
		return nil, err
	}
	req, asked, left := &wire.Request{Op: wire.OpFetch}, map[string]bool{}, limit
	var entries []wire.Entry
	for _, e := range answer.Entries {
		if skipped(string(e.Path), skip) {
			continue
		}
		entries = append(entries, e)
		if e.Deleted {
			continue
		}
		if left -= e.Size; left < 0 {
			return nil, fmt.Errorf("the changes up to %s hold more than %d bytes: %w", e.Path, limit, driver.ErrTooLarge)
		}
		req.Paths, asked[string(e.Path)] = append(req.Paths, e.Path), true
	}
	var got map[string]fetched
	if len(req.Paths) > 0 {
		_, err = s.call(ctx, req, nil, func(_ *wire.Answer, r io.Reader) error {
			got, err = unpackFetched(r, asked, limit)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	var out []driver.Change
	for _, e := range entries {
		if e.Deleted {
			out = append(out, driver.Change{Path: string(e.Path), Deleted: true})
		} else if f, ok := got[string(e.Path)]; ok { // a command may have removed it meanwhile
			out = append(out, driver.Change{Path: string(e.Path), Mode: f.mode, Data: f.data})
		}
	}
	return out, nil
}

// skipped reports whether skip holds for p or a directory above it.
func skipped(p string, skip func(string) bool) bool {
	for ; p != "."; p = path.Dir(p) {
		if skip(p) {
			return true
		}
	}
	return false
}

// limit gives the container what a command needs, and no less than the commands under way. The caller starts the command,
// or gives up, before it unlocks limiting.
func (s *sandbox) limit(ctx context.Context, l driver.Limits) error {
	want := limitsOf(l, s.base)
	s.mu.Lock()
	for p := range s.running {
		want = want.over(limitsOf(p.cmd.Limits, s.base))
	}
	s.mu.Unlock()
	if want == s.limits {
		return nil
	}
	r := want.resources()
	if want.memory == 0 {
		r.Memory, r.MemorySwap = -1, -1
	}
	if want.procs == 0 {
		none := int64(-1)
		r.PidsLimit = &none
	}
	if _, err := s.e.cli.ContainerUpdate(ctx, s.id, container.UpdateConfig{Resources: r}); err != nil {
		if strings.Contains(err.Error(), "device or resource busy") || strings.Contains(err.Error(), "current usage:") { // the kernel's words, runc's
			return fmt.Errorf("the files in the sandbox take more than the %d bytes of memory that the command may use: %w", l.Memory, driver.ErrFull)
		}
		return goneError(fmt.Sprintf("limit the container to %d bytes and %d processes", want.memory, want.procs), err)
	}
	s.limits = want
	return nil
}

// killAll ends every command and waits for the proof.
func (s *sandbox) killAll() {
	s.mu.Lock()
	left := make([]*process, 0, len(s.running))
	for p := range s.running {
		left = append(left, p)
	}
	s.mu.Unlock()
	for _, p := range left {
		p.Kill()
	}
	for _, p := range left {
		<-p.done
	}
}

// Reset implements driver.Sandbox.
func (s *sandbox) Reset(ctx context.Context) error {
	s.killAll()
	return s.unpack(ctx)
}

// Close implements driver.Sandbox. Ending the container ends its commands.
func (s *sandbox) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := s.e.remove(ctx, s.id)
	switch {
	case s.link != nil:
		s.link.close()
	case s.attached != nil:
		_ = s.attached.Close() // never fails
	}
	s.killAll()
	if err == nil {
		s.e.forget(s)
	}
	return err
}
