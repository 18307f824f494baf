package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// messenger starts a NATS server and returns a way to connect to it.
func messenger(t *testing.T) func() *nats.Conn {
	t.Helper()
	return connector(t, startNATS(t, -1))
}

func startNATS(t *testing.T, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	return s
}

func connector(t *testing.T, s *server.Server) func() *nats.Conn {
	return func() *nats.Conn {
		nc, err := nats.Connect(s.ClientURL(), nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

func quick() Config {
	return Config{Heartbeat: 40 * time.Millisecond, Lease: 400 * time.Millisecond, DrainTimeout: 300 * time.Millisecond}
}

// members notes what it is told.
type members struct {
	mu     sync.Mutex
	told   []string
	refuse error
	next   error         // in place of refuse, from the second Join on
	hang   bool          // the first Join waits for the end of its context
	drain  chan struct{} // Drain waits for it
}

func (m *members) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, fmt.Sprintf(format, args...))
}

func (m *members) Join(ctx context.Context, name string, o Offer) error {
	m.note("join %s %s", name, o.URL)
	m.mu.Lock()
	refuse, hang := m.refuse, m.hang
	m.refuse, m.hang = m.next, false
	m.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return refuse
}
func (m *members) Gone(name, why string) { m.note("gone %s: %s", name, why) }
func (m *members) Drain(ctx context.Context, name string) {
	m.note("drain %s", name)
	select {
	case <-m.drain:
	case <-ctx.Done():
	}
	m.note("drained %s", name)
}

// until waits until what was told is exactly that; a want that ends with * is the beginning of a line.
func (m *members) until(t *testing.T, want ...string) {
	t.Helper()
	var told []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		m.mu.Lock()
		told = append([]string{}, m.told...)
		m.mu.Unlock()
		same := len(told) == len(want)
		for i := 0; same && i < len(want); i++ {
			head, open := strings.CutSuffix(want[i], "*")
			same = told[i] == want[i] || open && strings.HasPrefix(told[i], head)
		}
		if same {
			return
		}
	}
	t.Fatalf("the run was told %q, want %q", told, want)
}

func hub(t *testing.T, nc *nats.Conn, run string, epoch uint64, m *members) *Hub {
	t.Helper()
	h, err := NewHub(quick(), nc, "p", run, epoch, m, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// worker is a server under test.
type worker struct {
	*Worker
	ill  atomic.Bool
	stop context.CancelFunc
	done chan error
	mu   sync.Mutex
	said string
}

func start(t *testing.T, nc *nats.Conn, change func(*Config)) *worker {
	t.Helper()
	cfg := quick()
	cfg.Name = "s"
	if change != nil {
		change(&cfg)
	}
	w := &worker{done: make(chan error, 1)}
	var err error
	w.Worker, err = NewWorker(cfg, WorkerDeps{NC: nc, Prefix: "p", Offer: Offer{URL: "http://a"},
		Health: func(context.Context) error {
			if w.ill.Load() {
				return errors.New("ill")
			}
			return nil
		},
		Say: func(text string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said += text + "\n"
		}})
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); w.done <- w.Run(ctx) }()
	t.Cleanup(func() { w.stop(); <-over })
	return w
}

func (w *worker) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the worker does not end")
		return nil
	}
}

func TestAServerJoinsAndLeaves(t *testing.T) {
	connect := messenger(t)
	m := &members{drain: make(chan struct{})}
	hub(t, connect(), "r", 1, m)
	w := start(t, connect(), func(c *Config) { c.DrainTimeout = 5 * time.Second })
	m.until(t, "join s http://a")
	listed, err := ListWorkers(t.Context(), connect(), "p", 200*time.Millisecond)
	if err != nil || len(listed) != 1 || listed[0].Name != "s" || listed[0].Busy != 1 || listed[0].Drains {
		t.Errorf("listed %+v, %v", listed, err)
	}
	w.stop()
	m.until(t, "join s http://a", "drain s")
	select {
	case err := <-w.done:
		t.Fatalf("the worker ended before its requests did: %v", err)
	case <-time.After(3 * quick().Heartbeat):
	}
	close(m.drain)
	if err := w.ended(t); err != nil {
		t.Error(err)
	}
	m.until(t, "join s http://a", "drain s", "drained s")
}

// A run that hears nobody does not take its servers for dead.
func TestAnOutageOfTheMessengerIsNoServersDeath(t *testing.T) {
	nats := startNATS(t, -1)
	connect := connector(t, nats)
	m := &members{drain: make(chan struct{})}
	hub(t, connect(), "r", 1, m)
	w := start(t, connect(), nil)
	m.until(t, "join s http://a")
	port := nats.Addr().(*net.TCPAddr).Port
	nats.Shutdown()
	nats.WaitForShutdown()
	time.Sleep(3 * quick().Lease)
	startNATS(t, port)
	time.Sleep(3 * quick().Lease)
	m.until(t, "join s http://a")
	close(m.drain)
	w.stop()
	if err := w.ended(t); err != nil {
		t.Error(err)
	}
	m.until(t, "join s http://a", "drain s", "drained s")
}

func TestAnIllServerIsGoneUntilItIsWell(t *testing.T) {
	connect := messenger(t)
	m := &members{}
	hub(t, connect(), "r", 1, m)
	w := start(t, connect(), nil)
	m.until(t, "join s http://a")
	w.ill.Store(true)
	m.until(t, "join s http://a", "gone s: its server does not answer")
	w.ill.Store(false)
	m.until(t, "join s http://a", "gone s: *", "join s http://a")
	w.Anew()
	m.until(t, "join s http://a", "gone s: *", "join s http://a", "gone s: it was started anew", "join s http://a")
}

func TestASilentServerIsGone(t *testing.T) {
	connect := messenger(t)
	m := &members{}
	hub(t, connect(), "r", 1, m)
	nc := connect()
	start(t, nc, nil)
	m.until(t, "join s http://a")
	nc.Close() // as if its machine were cut off
	m.until(t, "join s http://a", "gone s: silent for 400ms")
	start(t, connect(), nil) // another one of its name
	m.until(t, "join s http://a", "gone s: *", "join s http://a")
}

// A server is one run's at a time; a later epoch takes over, and a dead run's claim lapses.
func TestOneRunAtATime(t *testing.T) {
	connect := messenger(t)
	first, second, later := &members{}, &members{}, &members{}
	one := connect()
	hub(t, one, "r", 1, first)
	start(t, connect(), nil)
	first.until(t, "join s http://a")
	hub(t, connect(), "q", 1, second)
	time.Sleep(4 * quick().Heartbeat)
	second.until(t)
	one.Close() // killed
	second.until(t, "join s http://a")
	hub(t, connect(), "q", 2, later)
	later.until(t, "join s http://a")
	second.until(t, "join s http://a", "gone s: run q (epoch 2) has it")
}

func TestARunThatEndsGivesServersBack(t *testing.T) {
	connect := messenger(t)
	first, second := &members{}, &members{}
	h := hub(t, connect(), "r", 1, first)
	start(t, connect(), nil)
	first.until(t, "join s http://a")
	h.Close()
	first.until(t, "join s http://a", "gone s: the run is over")
	began := time.Now()
	hub(t, connect(), "q", 1, second)
	second.until(t, "join s http://a")
	if took := time.Since(began); took > quick().Lease {
		t.Errorf("the next run waited %v: the server was not given back", took)
	}
}

func TestARefusedServerSaysWhyAndServesOthers(t *testing.T) {
	connect := messenger(t)
	picky, other := &members{refuse: errors.New("another vocabulary"), next: errors.New("asked twice")}, &members{}
	hub(t, connect(), "r", 1, picky)
	w := start(t, connect(), nil)
	picky.until(t, "join s http://a")
	time.Sleep(4 * quick().Heartbeat)
	picky.until(t, "join s http://a") // it is not asked again
	hub(t, connect(), "q", 1, other)
	other.until(t, "join s http://a")
	w.mu.Lock()
	defer w.mu.Unlock()
	if !strings.Contains(w.said, "run r refuses this server: another vocabulary") {
		t.Errorf("it said %q", w.said)
	}
}

func TestTheOnlyRunRefuses(t *testing.T) {
	connect := messenger(t)
	picky, other := &members{refuse: errors.New("another vocabulary"), next: errors.New("asked twice")}, &members{}
	hub(t, connect(), "q", 1, other)
	w := start(t, connect(), func(c *Config) { c.Run = "r" })
	time.Sleep(3 * quick().Heartbeat)
	other.until(t)
	hub(t, connect(), "r", 1, picky)
	if err := w.ended(t); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "another vocabulary") {
		t.Errorf("%v, want KindConflict", err)
	}
}

func TestDrainingIsBounded(t *testing.T) {
	connect := messenger(t)
	m := &members{drain: make(chan struct{})}
	hub(t, connect(), "r", 1, m)
	w := start(t, connect(), func(c *Config) { c.DrainTimeout = 200 * time.Millisecond })
	m.until(t, "join s http://a")
	w.stop()
	if err := w.ended(t); err != nil {
		t.Error(err)
	}
	m.until(t, "join s http://a", "drain s", "drained s")
}

func TestConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`name "a b"`:            func(c *Config) { c.Name = "a b" },
		"heartbeat 0s":          func(c *Config) { c.Heartbeat = 0 },
		"lease 1s is below two": func(c *Config) { c.Lease = time.Second },
		"drain_timeout -1s":     func(c *Config) { c.DrainTimeout = -time.Second },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want KindInvalid with %q", err, want)
		}
	}
}

// What passes is no reason to refuse a server: it is asked again, under the same claim, and a Join that hangs ends before it lapses.
func TestAFailureThatPassesIsTriedAgain(t *testing.T) {
	for name, m := range map[string]*members{
		"unavailable": {refuse: milepost.E("join", milepost.KindUnavailable, "not now")},
		"hangs":       {hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			connect := messenger(t)
			other := &members{}
			hub(t, connect(), "r", 1, m)
			w := start(t, connect(), nil)
			m.until(t, "join s http://a", "join s http://a")
			hub(t, connect(), "q", 1, other)
			time.Sleep(4 * quick().Heartbeat)
			other.until(t)
			w.mu.Lock()
			defer w.mu.Unlock()
			if strings.Contains(w.said, "refuses") || strings.Contains(w.said, "silent") {
				t.Errorf("it said %q", w.said)
			}
		})
	}
}

// A server that stops waits for its requests longer than the lease, as the run that drains it repeats no claim.
func TestADrainOutlastsTheLease(t *testing.T) {
	connect := messenger(t)
	m := &members{drain: make(chan struct{})}
	hub(t, connect(), "r", 1, m)
	w := start(t, connect(), func(c *Config) { c.DrainTimeout = 5 * time.Second })
	m.until(t, "join s http://a")
	w.stop()
	m.until(t, "join s http://a", "drain s")
	select {
	case err := <-w.done:
		t.Fatalf("the worker ended before its requests did: %v", err)
	case <-time.After(2 * quick().Lease):
	}
	close(m.drain)
	if err := w.ended(t); err != nil {
		t.Error(err)
	}
}

// Servers of another version are said once for each.
func TestServersOfAnotherVersionAreSaidOnce(t *testing.T) {
	connect := messenger(t)
	nc := connect()
	said := make(chan string, 10)
	h, err := NewHub(quick(), nc, "p", "r", 1, &members{}, func(text string) { said <- text })
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, version := range []int{7, 7, 8} {
		b := wireBeat{V: version}
		b.Name = "s"
		msg, err := messages.Encode(subjects("p").beat("s"), b)
		if err != nil {
			t.Fatal(err)
		}
		h.onBeat(msg)
	}
	if len(said) != 2 || !strings.Contains(<-said, "speaks version 7 of the messages, this run version 1") || !strings.Contains(<-said, "version 8") {
		t.Errorf("%d said, want one for each version", len(said))
	}
}
