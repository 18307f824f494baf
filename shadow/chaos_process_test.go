package shadow

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
	"github.com/milepost-rl/milepost/internal/messages"
)

// The processes of a chaos scenario are the test binary itself, in a role that this variable names as JSON.
const chaosRoleEnv = "SHADOW_TEST_CHAOS_ROLE"

type chaosRole struct {
	Server  *ServerConfig
	Cluster *clusterRole
	Worker  *workerRole
}

// clusterRole is one server of a JetStream cluster.
type clusterRole struct {
	Name, Dir  string
	Port, Peer int
	Peers      []int // ports of all; none for a server that stands alone
	MaxStore   int64 // 0 = 1 GiB
}

type workerRole struct {
	URL, Token, Name, Dir string
	Slots                 int
	AckWait, Delay        time.Duration
	Real                  bool           // tests in the real sandbox
	Docker                *docker.Config // tests in containers of this engine
	Faults                bool           // its messages are damaged, doubled and held up
	Fatal                 string         // the tree whose tests end the worker process, each time: SIGKILL, as the kernel does when memory is out
	MaxDeliveries         int            // 0 = the default
}

// chaosMain is the main function of such a process; it ends on SIGTERM, and when the test that holds its standard input dies.
func chaosMain(text string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var role chaosRole
	fail(json.Unmarshal([]byte(text), &role))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch {
	case role.Server != nil:
		s, err := StartServer(*role.Server)
		fail(err)
		fmt.Println("ready")
		<-ctx.Done()
		s.Close()
	case role.Cluster != nil:
		s, err := role.Cluster.start()
		fail(err)
		fmt.Println("ready")
		<-ctx.Done()
		s.Shutdown()
		s.WaitForShutdown()
	default:
		fail(role.Worker.run(ctx))
	}
}

func (c *clusterRole) start() (*server.Server, error) {
	var routes []*url.URL
	for _, p := range c.Peers {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprint("127.0.0.1:", p)})
	}
	opts := &server.Options{ServerName: c.Name, Host: "127.0.0.1", Port: c.Port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: c.Dir,
		JetStreamMaxStore: cmp.Or(c.MaxStore, 1<<30), JetStreamMaxMemory: 64 << 20, Routes: routes}
	if len(c.Peers) > 0 {
		opts.Cluster = server.ClusterOpts{Name: "chaos", Host: "127.0.0.1", Port: c.Peer}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return nil, fmt.Errorf("server %s did not come up", c.Name)
	}
	return s, nil
}

func (w *workerRole) run(ctx context.Context) error {
	cfg := DefaultConnect()
	cfg.URL, cfg.Timeout, cfg.Name = w.URL, 30*time.Second, w.Name
	if w.Token != "" {
		cfg.URL = strings.Replace(cfg.URL, "nats://", "nats://"+w.Token+"@", 1)
	}
	nc, err := Connect(cfg)
	if err != nil {
		return err
	}
	defer nc.Close()
	store, err := repo.NewStore(filepath.Join(w.Dir, "bases"))
	if err != nil {
		return err
	}
	blobs, err := repo.NewBlobs(filepath.Join(w.Dir, "blobs"))
	if err != nil {
		return err
	}
	runner, options, done, err := w.runner(store, blobs)
	if err != nil {
		return err
	}
	defer done()
	wc := DefaultWorker()
	wc.Name, wc.Slots, wc.Streams.AckWait = w.Name, w.Slots, w.AckWait
	wc.Heartbeat, wc.Poll, wc.DrainTimeout = 100*time.Millisecond, 100*time.Millisecond, 5*time.Second
	if w.MaxDeliveries > 0 {
		wc.MaxDeliveries = w.MaxDeliveries
	}
	worker, err := NewWorker(ctx, nc, wc, &slowRunner{runner, w.Delay, w.Fatal}, blobs, append(options, WithBaseStore(store),
		WithWorkerErrors(func(err error) { fmt.Fprintln(os.Stderr, w.Name+":", err) }))...)
	if err != nil {
		return err
	}
	if w.Faults {
		worker.js = &faultyJetStream{JetStream: worker.js}
	}
	fmt.Println("ready")
	return worker.Run(ctx)
}

// runner gives the runner of the role and what ends it.
func (w *workerRole) runner(store *repo.Store, blobs *repo.Blobs) (r TestRunner, options []WorkerOption, done func(), err error) {
	var boxes driver.Driver
	switch {
	case w.Docker != nil:
		var d *docker.Driver
		if d, err = docker.New(context.Background(), *w.Docker); err == nil {
			boxes, options = d, []WorkerOption{WithReadiness(d.Ready)}
		}
	case w.Real:
		boxes, err = local.New(local.Config{Root: filepath.Join(w.Dir, "sandboxes")})
	default:
		dir := filepath.Join(w.Dir, "trees")
		return &contentRunner{store, blobs, dir}, nil, func() {}, os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	e := env.New(boxes)
	runner := testrun.New(testrun.Default(), e, store, blobs)
	return runner, options, func() {
		if err := errors.Join(runner.Close(), e.Close()); err != nil {
			fmt.Fprintln(os.Stderr, w.Name+": close:", err)
		}
	}, nil
}

// slowRunner takes its time, and tells on standard output when it holds a probe.
type slowRunner struct {
	TestRunner
	delay time.Duration
	fatal string
}

func (s *slowRunner) Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (Outcome, error) {
	fmt.Println("begin")
	defer fmt.Println("end")
	time.Sleep(s.delay)
	if tree == s.fatal {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return s.TestRunner.Run(ctx, task, tree, delta)
}

// faultyJetStream treats results as a bad network would: every third is damaged and lost, every third comes twice, and
// every third is held up behind later ones.
type faultyJetStream struct {
	jetstream.JetStream
	n atomic.Int32
}

func (f *faultyJetStream) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	switch f.n.Add(1) % 3 {
	case 0:
		bad := nats.NewMsg(m.Subject)
		bad.Header.Set(messages.SumHeader, m.Header.Get(messages.SumHeader))
		bad.Data = bytes.Clone(m.Data)
		bad.Data[len(bad.Data)/2] ^= 0x20
		return f.JetStream.PublishMsg(ctx, bad, opts...)
	case 1:
		twin := nats.NewMsg(m.Subject)
		twin.Header.Set(messages.SumHeader, m.Header.Get(messages.SumHeader))
		twin.Data = m.Data
		if _, err := f.JetStream.PublishMsg(ctx, twin); err != nil {
			return nil, err
		}
	default:
		time.Sleep(400 * time.Millisecond)
	}
	return f.JetStream.PublishMsg(ctx, m, opts...)
}

// chaosProcess is a running role.
type chaosProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	ready  chan struct{}
	ended  chan struct{}
	begun  atomic.Int32
	holds  atomic.Int32 // probes that a worker has begun and not ended
	mu     sync.Mutex
	stderr bytes.Buffer
}

// startRole starts a process and waits until it is ready. Words of through, such as "ip netns exec NAME", go before it. It
// dies with the test.
func startRole(t *testing.T, role chaosRole, through ...string) *chaosProcess {
	t.Helper()
	text, err := json.Marshal(role)
	must(t, err)
	argv := append(through, os.Args[0])
	p := &chaosProcess{t: t, cmd: exec.Command(argv[0], argv[1:]...), ready: make(chan struct{}), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), chaosRoleEnv+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = p
	p.cmd.WaitDelay = 5 * time.Second
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	_, err = p.cmd.StdinPipe() // held open until the process has ended
	must(t, err)
	must(t, p.cmd.Start())
	go p.read(out)
	t.Cleanup(func() { p.end(syscall.SIGTERM) })
	select {
	case <-p.ready:
	case <-p.ended:
		t.Fatalf("the process ended: %s", p.said())
	case <-time.After(60 * time.Second):
		t.Fatalf("the process did not get ready: %s", p.said())
	}
	return p
}

func (p *chaosProcess) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch lines.Text() {
		case "ready":
			close(p.ready)
		case "begin":
			p.begun.Add(1)
			p.holds.Add(1)
		case "end":
			p.holds.Add(-1)
		}
	}
	_ = p.cmd.Wait() // the state says how it ended
	close(p.ended)
}

// Write collects what the process says on standard error.
func (p *chaosProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

func (p *chaosProcess) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func (p *chaosProcess) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

// end sends a signal and waits for the end; a process that does not obey within ten seconds is killed.
func (p *chaosProcess) end(s syscall.Signal) {
	p.signal(syscall.SIGCONT)
	p.signal(s)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

// freePort finds a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}
