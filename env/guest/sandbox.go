package guest

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/driver"
)

// Host is what only the technology can do for a sandbox.
type Host interface {
	// Limit bounds the sandbox as a whole, for a command that asked for l. Where its files already take more than that
	// memory the error wraps driver.ErrFull.
	Limit(ctx context.Context, want Limits, l driver.Limits) error
	// Gone says why a sandbox whose connection ended is no more: an error of KindMemory where it ran out of it as a whole,
	// nil where there is no other reason to be told.
	Gone() error
	// Said returns the last words of process 1 on standard error, "" where it said nothing.
	Said() string
	// Kills counts the processes that the kernel killed for the sandbox's memory, where the agent inside cannot.
	Kills() int64
}

// Sandbox implements the methods of driver.Sandbox but Close, over a connection to the agent.
//
// Invariants: running holds every command that is not known to be over; limits are those that the sandbox has, and are
// changed under limiting, together with what counts who needs them; after closing is set the end of the connection is no
// failure.
type Sandbox struct {
	host Host
	link *Link
	base Base
	env  []string // NAME=VALUE, below that of every command
	root string   // the workspace, as commands see it
	copy string   // tree id of the base volume, which the workspace is copied from; "" = base is sent

	single   func(driver.Limits) (memory, procs int64) // see Bound
	limiting sync.Mutex
	limits   Limits

	running driver.Running[*process]
	closing atomic.Bool
}

// New returns a sandbox that was made with the limits and answers on link. Its workspace is what Unpack makes it. vars,
// NAME=VALUE, are added to the environment of every command.
func New(host Host, link *Link, base Base, limits Limits, vars ...string) *Sandbox {
	return &Sandbox{host: host, link: link, base: base, limits: limits, env: vars, root: agent.Workspace}
}

// Serve says that the agent serves the directory root (agent.ArgvAt). Where volume is not "", Unpack copies the workspace
// from the sandbox's base volume, whose tree must have that id, and sends nothing. It is called before Unpack.
func (s *Sandbox) Serve(root, volume string) { s.root, s.copy = root, volume }

// Bound has every command limited by f: bytes of address space of a single process, and processes of the user; 0 is none. It
// is for hosts that cannot limit the sandbox as a whole, and called before any command.
func (s *Sandbox) Bound(f func(driver.Limits) (memory, procs int64)) { s.single = f }

// Root implements driver.Sandbox.
func (s *Sandbox) Root() string { return s.root }

// Inside implements driver.Sandbox.
func (s *Sandbox) Inside(m driver.Mount) string { return m.Path }

// call does one request on the sandbox's files.
func (s *Sandbox) call(ctx context.Context, req *wire.Request, send func(io.Writer) error, receive func(*wire.Answer, io.Reader) error) (*wire.Answer, error) {
	answer, err := s.link.call(ctx, req, send, receive)
	return answer, s.explain(err)
}

// explain says why a sandbox does not answer, where that is why.
func (s *Sandbox) explain(err error) error {
	if err == nil || !s.link.session.IsClosed() {
		return err
	}
	if !s.closing.Load() {
		if gone := s.host.Gone(); gone != nil {
			return gone
		}
	}
	if said := s.host.Said(); said != "" {
		return fmt.Errorf("%w; its last words: %s", err, said)
	}
	return err
}

// Unpack fills the workspace with the base.
func (s *Sandbox) Unpack(ctx context.Context) error {
	if s.copy != "" {
		return s.copyBase(ctx)
	}
	_, err := s.call(ctx, &wire.Request{Op: wire.OpUnpack}, func(w io.Writer) error { return s.base.pack(ctx, w) }, nil)
	return err
}

// Stat implements driver.Sandbox.
func (s *Sandbox) Stat(p string) (driver.FileInfo, error) {
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

// ReadDir implements driver.Sandbox.
func (s *Sandbox) ReadDir(p string) ([]driver.FileInfo, error) {
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

// ReadFile implements driver.Sandbox.
func (s *Sandbox) ReadFile(p string, limit int64) ([]byte, fs.FileMode, error) {
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

// WriteFile implements driver.Sandbox.
func (s *Sandbox) WriteFile(p string, data []byte, mode fs.FileMode) error {
	_, err := s.call(context.Background(), &wire.Request{Op: wire.OpWrite, Path: []byte(p), Mode: mode}, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}, nil)
	return err
}

// Symlink implements driver.Sandbox.
func (s *Sandbox) Symlink(target, p string) error {
	_, err := s.call(context.Background(), &wire.Request{Op: wire.OpSymlink, Path: []byte(p), Target: []byte(target)}, nil, nil)
	return err
}

// Remove implements driver.Sandbox.
func (s *Sandbox) Remove(p string) error {
	_, err := s.call(context.Background(), &wire.Request{Op: wire.OpRemove, Path: []byte(p)}, nil, nil)
	return err
}

// Changes implements driver.Sandbox. The agent lists what differs; what is not skipped is then fetched in one go.
func (s *Sandbox) Changes(ctx context.Context, skip func(string) bool, limit int64) ([]driver.Change, error) {
	answer, err := s.call(ctx, &wire.Request{Op: wire.OpChanged}, nil, nil)
	if err != nil {
		return nil, err
	}
	req, asked, left := &wire.Request{Op: wire.OpFetch}, map[string]bool{}, limit
	var entries []wire.Entry
	for _, e := range answer.Entries {
		if driver.Skipped(string(e.Path), skip) {
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

// limit gives the sandbox what a command needs, and no less than the commands under way. The caller starts the command,
// or gives up, before it unlocks limiting.
func (s *Sandbox) limit(ctx context.Context, l driver.Limits) error {
	want := LimitsOf(l, s.base)
	for _, p := range s.running.All() {
		want = want.over(LimitsOf(p.cmd.Limits, s.base))
	}
	if want == s.limits {
		return nil
	}
	if err := s.host.Limit(ctx, want, l); err != nil {
		return err
	}
	s.limits = want
	return nil
}

// Reset implements driver.Sandbox.
func (s *Sandbox) Reset(ctx context.Context) error {
	s.running.KillAll()
	return s.Unpack(ctx)
}

// Closing says that the sandbox is about to be ended: from here on that is no failure of a command.
func (s *Sandbox) Closing() { s.closing.Store(true) }

// Ended closes the connection and waits for the end of every command, which that of the sandbox brings about.
func (s *Sandbox) Ended() {
	s.link.Close()
	s.running.KillAll()
}
