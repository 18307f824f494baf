package tracker

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// Run is the run whose metrics are handed over.
type Run struct {
	Folder  *orchestrator.Folder
	ID      string         // the same in every start of the run: trackers go on with the run of this id
	Name    string         // shown
	Config  map[string]any // the resolved configuration, without secrets
	Command []string       // starts milepost_trainer.trackers
	Env     []string       // of the command, as KEY=VALUE; credentials are in it
	Warn    func(error)    // told what went wrong; called from any goroutine
}

// Feeds hands the lines of metrics.jsonl to every enabled tracker.
//
// Invariants: nobody waits for a tracker but Close, and that no longer than the grace. The queue is metrics.jsonl itself: a
// feed keeps one line and an offset in memory, however far its tracker is behind. A line is given when the one before was
// delivered, and the tracker's process keeps the offset on disk, so that a process that is started again, by this
// start of the run or the next, goes on where the last one ended.
type Feeds struct {
	grace time.Duration
	feeds []*feed
	done  sync.WaitGroup
	stop  context.CancelFunc
}

// Start starts a feed for each enabled tracker; it waits for none.
func Start(cfg Config, run Run) (*Feeds, error) {
	ctx, stop := context.WithCancel(context.Background())
	f := &Feeds{grace: cfg.Grace, stop: stop}
	dir := run.Folder.Path("trackers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		stop()
		return nil, milepost.Wrap("tracker: start", milepost.KindUnavailable, err)
	}
	for _, o := range cfg.enabled() {
		hello, err := json.Marshal(map[string]any{"tracker": o.name, "id": run.ID, "name": run.Name, "dir": absolute(dir), "options": o.values, "config": run.Config})
		if err != nil {
			stop()
			return nil, milepost.Wrap("tracker: start", milepost.KindInvalid, err)
		}
		f.feeds = append(f.feeds, &feed{name: o.name, run: run, hello: append(hello, '\n'), wake: make(chan struct{}, 1), closing: make(chan struct{})})
	}
	for _, d := range f.feeds {
		f.done.Go(func() { d.work(ctx) })
	}
	return f, nil
}

func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// Recorded says that metrics.jsonl has grown; it is orchestrator.Deps.Recorded.
func (f *Feeds) Recorded(orchestrator.MetricsLine) {
	for _, d := range f.feeds {
		select {
		case d.wake <- struct{}{}:
		default: // it has not looked since the last time
		}
	}
}

// Warnings is how many times something went wrong, by tracker.
func (f *Feeds) Warnings() map[string]int64 {
	out := map[string]int64{}
	for _, d := range f.feeds {
		out[d.name] = d.warnings.Load()
	}
	return out
}

// Close lets the trackers take what is there, for as long as the grace, and then ends their processes. Whoever is behind
// is told.
func (f *Feeds) Close() {
	for _, d := range f.feeds {
		close(d.closing)
	}
	timer := time.AfterFunc(f.grace, f.stop)
	f.done.Wait()
	timer.Stop()
	f.stop()
}

// Times of a feed. A tracker that fails is tried again for as long as the run goes on.
const (
	firstPause = time.Second
	longest    = time.Minute
	stalled    = 2 * time.Minute // without an answer before somebody is told; packages retry by themselves for longer
)

type feed struct {
	name     string
	run      Run
	hello    []byte
	wake     chan struct{} // metrics.jsonl has grown; capacity 1
	closing  chan struct{} // no more will come
	warnings atomic.Int64
	offset   int64 // behind the last line that was delivered, as far as this start knows
}

// work runs sessions until one ends because no more will come, or ctx does.
func (d *feed) work(ctx context.Context) {
	pause := firstPause
	for {
		before := d.offset
		err := d.session(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			d.warn(err)
		}
		if d.offset > before {
			pause = firstPause
		}
		select {
		case <-d.closing: // no other try at the end
			d.left(ctx.Err() != nil)
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// warn counts a failure and tells of the 1st, 2nd, 4th, 8th, ….
func (d *feed) warn(err error) {
	n := d.warnings.Add(1)
	if n&(n-1) != 0 {
		return
	}
	times := ""
	if n > 1 {
		times = fmt.Sprintf(", %d times by now", n)
	}
	d.run.Warn(fmt.Errorf("tracker %s%s: %w; the run goes on, and what is not delivered is sent again", d.name, times, err))
}

// left tells how many lines the tracker did not get, or that its process, which had them all, was killed before it ended.
func (d *feed) left(killed bool) {
	n := 0
	_, err := d.run.Folder.MetricsFrom(d.offset, func(orchestrator.MetricsLine, int64) error { n++; return nil })
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.run.Warn(fmt.Errorf("tracker %s: %w", d.name, err))
	case n > 0:
		d.run.Warn(fmt.Errorf("tracker %s: %d lines of metrics.jsonl were not delivered; the next start of the run sends them", d.name, n))
	case killed:
		d.run.Warn(fmt.Errorf("tracker %s: its process did not end within trackers.grace and was killed; what it had not stored is lost there", d.name))
	}
}

// answer is what the process says of a line.
type answer struct {
	Ready *int64 `json:"ready"`
	Done  *int64 `json:"done"`
	Error string `json:"error"`
}

// failure is what the process says that went wrong; nil where it says nothing.
func (a answer) failure() error {
	if a.Error == "" {
		return nil
	}
	return errors.New(a.Error)
}

// process is a tracker's process with its two pipes.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer // closed at the end of its output
	reading sync.WaitGroup
}

// session starts a process and hands it lines. It returns nil where no more will come and the process has ended well.
func (d *feed) session(ctx context.Context) (err error) {
	p, err := d.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = p.end(err) }()
	ready, err := d.hear(ctx, p)
	if err == nil && ready.Ready == nil {
		err = fmt.Errorf("it did not say that it is ready")
	}
	if err != nil {
		return err
	}
	d.offset = *ready.Ready
	for closing := false; ; {
		if err := d.give(ctx, p); err != nil || closing {
			return err
		}
		select {
		case <-d.wake:
		case <-d.closing:
			closing = true
		case a := <-p.answers: // unasked, or the end
			return cmp.Or(a.failure(), fmt.Errorf("its process ended; see logs/tracker-%s.log", d.name))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// start starts the process, in a group of its own so that an interrupt at the terminal does not reach it. ctx's end kills it.
func (d *feed) start(ctx context.Context) (*process, error) {
	log, err := os.OpenFile(d.run.Folder.Path("logs", "tracker-"+d.name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, d.run.Command[0], d.run.Command[1:]...)
	cmd.Env, cmd.Stderr = d.run.Env, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: in, answers: make(chan answer)}
	p.reading.Go(func() {
		defer close(p.answers)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var a answer
			if json.Unmarshal(sc.Bytes(), &a) == nil {
				p.answers <- a
			}
		}
	})
	_, err = in.Write(d.hello)
	if err != nil {
		return nil, p.end(err)
	}
	return p, nil
}

// end closes the process's input, which makes it flush and exit, and waits for it. What the process itself says is a better
// reason than a broken pipe.
func (p *process) end(err error) error {
	_ = p.in.Close() // it may have ended already
	for a := range p.answers {
		err = cmp.Or(a.failure(), err)
	}
	p.reading.Wait()
	if exit := p.cmd.Wait(); err == nil {
		err = exit
	}
	return err
}

// hear waits for the next answer, and says so where that takes long.
func (d *feed) hear(ctx context.Context, p *process) (answer, error) {
	timer := time.NewTicker(stalled)
	defer timer.Stop()
	for {
		select {
		case a, more := <-p.answers:
			if !more {
				return a, fmt.Errorf("its process ended; see logs/tracker-%s.log", d.name)
			}
			return a, a.failure()
		case <-timer.C:
			d.warn(fmt.Errorf("no answer for %s", stalled))
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
}

// give hands over what metrics.jsonl has behind the offset.
func (d *feed) give(ctx context.Context, p *process) error {
	enc := json.NewEncoder(p.in)
	offset, err := d.run.Folder.MetricsFrom(d.offset, func(l orchestrator.MetricsLine, end int64) error {
		if err := enc.Encode(map[string]any{"end": end, "step": l.Update, "time": float64(l.Time.UnixMicro()) / 1e6, "scalars": l.Scalars()}); err != nil {
			return err
		}
		a, err := d.hear(ctx, p)
		if err == nil && (a.Done == nil || *a.Done != end) {
			err = fmt.Errorf("it answered %+v to the line that ends at %d", a, end)
		}
		if err == nil {
			d.offset = end
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was recorded yet
	}
	if err == nil {
		d.offset = offset
	}
	return err
}
