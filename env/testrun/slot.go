package testrun

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

const (
	startBound = 60 * time.Second // for an interpreter to start on a busy machine
	maxAnswer  = 256 << 20        // bytes of one line of an answer
	treesPath  = "/mnt/trees"     // where a slot's copies are seen inside
)

// slot is one resident process in a sandbox of its own, with the directory that its copies are in.
//
// Invariants: one run at a time owns a slot (the pool sees to it). After an error of ask the process is dead and the slot
// only good to be closed.
type slot struct {
	image   string
	trees   string // host directory of the copies
	inside  string // the same as the process sees it
	uses    int
	sandbox *env.Sandbox
	process *env.Process
	answers *bufio.Reader
}

// startSlot makes a sandbox and starts the resident process in it. trees is the slot's own and removed with it.
func startSlot(ctx context.Context, e *env.Env, limits env.Limits, image, trees string) (made *slot, err error) {
	s := &slot{image: image, trees: trees} // a variable of its own: what a failed start has opened is closed
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := os.Mkdir(trees, 0o755); err != nil {
		return nil, milepost.Wrap("testrun: start resident", milepost.KindUnavailable, err)
	}
	mount := env.Mount{Host: trees, Path: treesPath, Writable: true}
	limits.Wall = 0
	s.sandbox, err = e.Create(ctx, env.Spec{Name: "resident tests", Image: image, Mounts: []env.Mount{mount}, Limits: limits})
	if err != nil {
		return nil, err
	}
	s.inside = s.sandbox.Inside(mount)
	confined := s.inside == treesPath
	options := struct {
		Confined bool     `json:"confined"`
		Clean    []string `json:"clean"`
	}{confined, []string{s.inside}}
	if confined { // otherwise these are the host's
		options.Clean = append(options.Clean, "/tmp", "/dev/shm", s.sandbox.Root())
	}
	text, err := json.Marshal(options)
	if err != nil {
		return nil, milepost.Wrap("testrun: start resident", milepost.KindInternal, err)
	}
	s.process, err = s.sandbox.Start(ctx, env.Command{
		Argv: []string{"python3", "-s", "-c", residentProgram, string(text)},
		Env:  map[string]string{"PYTHONHASHSEED": "0"}, // or results would differ between slots
	})
	if err != nil {
		return nil, err
	}
	s.answers = bufio.NewReader(s.process.Stdout)
	ready, err := s.exchange(ctx, nil, startBound)
	if err == nil && !ready.Ready {
		err = milepost.E("testrun: start resident", milepost.KindCorrupt, "its first line does not say that it is ready: %+v", ready)
	}
	if errors.Is(err, errDied) {
		s.process.Kill()
		if res, waitErr := s.process.Wait(); waitErr == nil {
			err = milepost.E("testrun: start resident", milepost.KindUnavailable, "python3 did not start: exit code %d: %s", res.ExitCode, bytes.TrimSpace(res.Stderr))
		}
	}
	return s, err
}

// ask sends a request and returns its answer. It fails with errDied where the process ends or does not answer within the
// bound, with KindCorrupt where the answer is not the request's. The process is dead after any error.
func (s *slot) ask(ctx context.Context, req request, bound time.Duration) (answer, error) {
	req.Nonce = rand.Text()
	if req.Env == nil {
		req.Env = map[string]string{}
	}
	line, err := json.Marshal(req)
	if err != nil {
		return answer{}, milepost.Wrap("testrun: ask resident", milepost.KindInternal, err)
	}
	ans, err := s.exchange(ctx, append(line, '\n'), bound)
	if err == nil && ans.Nonce != req.Nonce {
		s.process.Kill()
		return answer{}, milepost.E("testrun: ask resident", milepost.KindCorrupt, "the answer %q is to another request than %q", ans.Nonce, req.Nonce)
	}
	return ans, err
}

// exchange writes a line, if any, and reads one, within the bound.
func (s *slot) exchange(ctx context.Context, line []byte, bound time.Duration) (answer, error) {
	const op = "testrun: ask resident"
	type reply struct {
		line []byte
		err  error
	}
	got := make(chan reply, 1)
	go func() {
		var r reply
		if _, r.err = s.process.Stdin.Write(line); r.err == nil {
			r.line, r.err = readLine(s.answers, maxAnswer)
		}
		got <- r
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case r := <-got:
		var ans answer
		if r.err != nil {
			s.process.Kill()
			return answer{}, fmt.Errorf("%w: %v", errDied, r.err)
		}
		if err := json.Unmarshal(r.line, &ans); err != nil {
			s.process.Kill()
			return answer{}, milepost.E(op, milepost.KindCorrupt, "an answer is not JSON: %v", err)
		}
		return ans, nil
	case <-ctx.Done():
		s.process.Kill()
		<-got
		return answer{}, milepost.Wrap(op, milepost.KindCanceled, context.Canceled)
	case <-timer.C:
		s.process.Kill()
		<-got
		return answer{}, fmt.Errorf("%w: no answer within %s", errDied, bound)
	}
}

// readLine reads up to a line end, which it leaves out.
func readLine(r *bufio.Reader, max int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case len(line) > max:
			return nil, fmt.Errorf("a line is longer than %d bytes", max)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// outOfMemory ends the process and says whether anything in it was killed for its memory.
func (s *slot) outOfMemory() bool {
	s.process.Kill()
	res, err := s.process.Wait()
	return err == nil && res.OutOfMemory
}

// close ends the process and removes sandbox and copies.
func (s *slot) close() error {
	var errs []error
	if s.process != nil {
		s.process.Kill()
		_, err := s.process.Wait()
		errs = append(errs, err)
	}
	if s.sandbox != nil {
		errs = append(errs, s.sandbox.Close(context.Background()))
	}
	errs = append(errs, removeAll(s.trees))
	return errors.Join(errs...)
}

// empty removes whatever is in the slot's directory of copies: the process has done so, unless it died.
func (s *slot) empty() error {
	entries, err := os.ReadDir(s.trees)
	for _, e := range entries {
		err = errors.Join(err, removeAll(filepath.Join(s.trees, e.Name())))
	}
	return err
}

// removeAll is os.RemoveAll, also where tests took away the rights to their directories.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(name, 0o700) // before it is read
		}
		return nil // what is still there afterwards is told by RemoveAll
	})
	return errors.Join(err, os.RemoveAll(dir))
}
