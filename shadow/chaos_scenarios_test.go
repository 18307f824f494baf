package shadow

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/internal/messages"
)

// chaosFullEnv asks for the long form (make chaos): six copies of the recording, tests in the real sandbox.
const chaosFullEnv = "MILEPOST_CHAOS"

const (
	chaosTurn    = 40 * time.Millisecond // of an agent
	chaosBarrier = 2 * time.Minute       // far longer than any scenario should take: what is late at it never comes (see settle)
)

// scenarios is the table of what may go wrong. Another one is one more line: what it needs (a reason to skip it, or ""), how
// its world differs, what it breaks once the replay is under way, and by what it is seen that it did break something.
var scenarios = []scenario{
	{name: "worker killed in a probe", world: slowFirst, disturb: killWorker, trace: counted(func(s Stats) bool { return s.Redelivered > 0 })},
	{name: "server killed and restarted", disturb: killServer, trace: func(w *chaosWorld) bool { return w.nc.Stats().Reconnects > 0 }},
	{name: "one of three servers killed", world: threeServers, disturb: killLeader, trace: func(w *chaosWorld) bool { return w.killed != "" }},
	{name: "partition between worker and server", needs: needsNetns, world: workerBehindVeth, disturb: partition, trace: counted(func(s Stats) bool { return s.Redelivered > 0 })},
	{name: "worker paused beyond its lease", world: slowFirst, disturb: pauseWorker, trace: counted(func(s Stats) bool { return s.Redelivered > 0 && s.Fenced+s.Duplicates > 0 })},
	{name: "messages doubled, reordered, corrupt", world: faultyWorkers, disturb: tamper,
		trace: counted(func(s Stats) bool { return s.Corrupt > 0 && s.LostMessages > 0 && s.Fenced+s.Duplicates > 0 })},
	{name: "server's disk full", needs: needsMount, world: serverOnSmallDisk, disturb: fillServersDisk, trace: func(w *chaosWorld) bool {
		return w.prober.Stats().PublishErrors > 0 || workersSaid("publish result")(w)
	}},
	{name: "external server's disk full, restarted by hand", needs: needsMount, world: externalServerOnSmallDisk, disturb: fillExternalServersDisk,
		trace: reported(restartAdvice)},
	{name: "two of three servers killed", world: threeServers, disturb: killTwo, trace: func(w *chaosWorld) bool {
		return w.prober.Stats().PublishErrors > 0 || workersSaid("publish result")(w)
	}},
	{name: "slow network", world: slowNetwork, disturb: breakLine, trace: sawSlowNetwork},
	{name: "Docker engine killed", needs: dockertest.Missing, world: onDocker(), disturb: killEngine, trace: counted(func(s Stats) bool { return s.Retries > 0 }), after: nothingLeft},
	{name: "Docker engine killed, live-restore", needs: needsFull(dockertest.Missing), world: onDocker("--live-restore"), disturb: killEngine,
		trace: counted(func(s Stats) bool { return s.Retries > 0 }), after: nothingLeft},
	{name: "worker's disk full", needs: needsMount, world: workerOnSmallDisk, disturb: fillWorkersDisk, trace: counted(func(s Stats) bool { return s.Retries > 0 })},
}

type scenario struct {
	name    string
	needs   func() string
	world   func(w *chaosWorld)
	disturb func(ctx context.Context, w *chaosWorld)
	trace   func(*chaosWorld) bool // nil where nothing need show
	after   func(*chaosWorld)      // looks at what is left once the credits are there; nil for nothing
}

// needsFull keeps a scenario to the long form.
func needsFull(needs func() string) func() string {
	return func() string {
		if os.Getenv(chaosFullEnv) == "" {
			return "only in the long form (make chaos)"
		}
		return needs()
	}
}

func counted(ok func(Stats) bool) func(*chaosWorld) bool {
	return func(w *chaosWorld) bool { return ok(w.prober.Stats()) }
}

func workersSaid(what string) func(*chaosWorld) bool {
	return func(w *chaosWorld) bool {
		said := ""
		for _, p := range w.workers {
			said += p.said()
		}
		return strings.Contains(said, what)
	}
}

// chaosWorld is the processes of one scenario.
type chaosWorld struct {
	t       *testing.T
	full    bool
	dir     string
	server  ServerConfig
	servers []*chaosProcess
	cluster []*clusterRole // instead of server
	roles   []*workerRole
	through [][]string // what starts the worker of the same index
	workers []*chaosProcess
	prober  *Prober
	nc      *nats.Conn          // the prober's
	killed  string              // the server that was killed
	js      jetstream.JetStream // of a connection that the scenario may use
	pc      ProberConfig
	goOn    func() // lets the agents do the second half of their steps
	small   string // the small disk
	link    string // the network link to cut
	slow    *slowLink
	engine  *dockertest.Engine
	clean   engineLeft // what the engine has without sandboxes

	mu      sync.Mutex
	reports []string // of the prober
}

func (w *chaosWorld) report(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, err.Error())
}

// reported tells whether the prober said so.
func reported(what string) func(*chaosWorld) bool {
	return func(w *chaosWorld) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.reports, func(s string) bool { return strings.Contains(s, what) })
	}
}

func TestChaos(t *testing.T) {
	full := os.Getenv(chaosFullEnv) != ""
	copies := 1
	if full {
		copies = 6
		if _, err := local.New(local.Config{Root: t.TempDir()}); err != nil {
			t.Fatalf("make chaos needs the sandbox: %v", err)
		}
	}
	s := newStage(t, copies)
	want := s.run(t, scenario{name: "undisturbed"}, full)
	if t.Failed() || want.untrusted > 0 {
		t.Fatalf("the undisturbed run has %d untrusted probes", want.untrusted)
	}
	earned := 0
	for _, c := range want.credits {
		for _, st := range c.Steps {
			if st.R != 0 {
				earned++
			}
		}
	}
	if earned < 20 {
		t.Fatalf("only %d steps earned credit: nothing to compare", earned)
	}
	t.Logf("undisturbed: %d probes, %d late, %d steps earned credit", want.probes, want.late, earned)
	for _, sc := range scenarios {
		t.Run(strings.ReplaceAll(sc.name, ",", ""), func(t *testing.T) {
			if sc.needs != nil {
				if why := sc.needs(); why != "" {
					t.Skip(why)
				}
			}
			if !full {
				t.Parallel()
			}
			got := s.run(t, sc, full)
			got.expectSame(t, want)
		})
	}
}

// run starts a world, replays the recording in it and takes it down.
func (s *stage) run(t *testing.T, sc scenario, full bool) ending {
	t.Helper()
	w := &chaosWorld{t: t, full: full, dir: t.TempDir(), server: DefaultServer(), pc: DefaultProber()}
	w.server.Dir, w.server.Listen, w.server.Port = filepath.Join(w.dir, "nats"), true, freePort(t)
	w.pc.Run, w.pc.Epoch, w.pc.Reconcile, w.pc.Recheck = "chaos", 1, 500*time.Millisecond, 0
	w.pc.Merge = 1 // what is merged depends on time, and credit on what is merged
	w.pc.Streams.AckWait = 1500 * time.Millisecond
	w.pc.Streams.MaxRequests, w.pc.Streams.MaxObjects = 8<<20, 8<<20
	for i := range 2 {
		w.roles = append(w.roles, &workerRole{Name: fmt.Sprint("w", i), Dir: filepath.Join(w.dir, fmt.Sprint("w", i)), Slots: 2,
			AckWait: w.pc.Streams.AckWait, Delay: 60 * time.Millisecond, Real: full})
	}
	w.through = make([][]string, len(w.roles))
	if sc.world != nil {
		sc.world(w)
	}
	t.Cleanup(func() { // before the processes end
		for _, p := range append(w.workers, w.servers...) {
			if t.Failed() && p.said() != "" {
				t.Logf("a process said:\n%s", p.said())
			}
		}
	})
	w.start(s)
	defer func() { _ = w.prober.Close() }()
	half := make(chan struct{})
	w.goOn = sync.OnceFunc(func() { close(half) })
	end := s.replay(t, w.prober, half, func(ctx context.Context) {
		defer w.goOn()
		if sc.disturb != nil {
			w.await(ctx, "probes are under way", func() bool { return w.prober.Stats().Trusted >= 3 })
			sc.disturb(ctx, w)
		}
	})
	if sc.trace != nil {
		eventually(t, fmt.Sprintf("the trouble shows: %+v", w.prober.Stats()), func() bool { return sc.trace(w) })
	}
	end.stats = w.prober.Stats()
	if sc.after != nil {
		sc.after(w)
	}
	return end
}

func (w *chaosWorld) urls() string {
	if len(w.cluster) == 0 {
		return fmt.Sprintf("nats://%s:%d", w.server.Host, w.server.Port)
	}
	var urls []string
	for _, c := range w.cluster {
		urls = append(urls, fmt.Sprint("nats://127.0.0.1:", c.Port))
	}
	return strings.Join(urls, ",")
}

func (w *chaosWorld) connect() *nats.Conn {
	w.t.Helper()
	cfg := DefaultConnect()
	cfg.URL, cfg.Timeout = w.urls(), 30*time.Second
	if w.server.Token != "" {
		cfg.URL = strings.Replace(cfg.URL, "nats://", "nats://"+w.server.Token+"@", 1)
	}
	nc, err := Connect(cfg)
	must(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

func (w *chaosWorld) start(s *stage) {
	w.t.Helper()
	if len(w.cluster) == 0 {
		w.servers = append(w.servers, startRole(w.t, chaosRole{Server: &w.server}))
	} else {
		for _, c := range w.cluster { // they elect a leader once two are there
			w.servers = append(w.servers, startRole(w.t, chaosRole{Cluster: c}))
		}
	}
	w.js = jetStream(w.t, w.connect())
	w.nc = w.connect()
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		w.prober, err = NewProber(ctx, w.nc, w.pc, s.blobs, WithBases(s.store), WithErrors(w.report))
		cancel()
		if err == nil || time.Now().After(end) { // a cluster elects its leader first
			break
		}
	}
	must(w.t, err)
	for i := range w.roles {
		w.workers = append(w.workers, w.startWorker(i))
	}
}

func (w *chaosWorld) startWorker(i int) *chaosProcess {
	w.roles[i].URL, w.roles[i].Token = w.urls(), w.server.Token
	if w.slow != nil {
		w.roles[i].URL = w.slow.url()
	}
	return startRole(w.t, chaosRole{Worker: w.roles[i]}, w.through[i]...)
}

// await polls until ok holds, or the test ends.
func (w *chaosWorld) await(ctx context.Context, what string, ok func() bool) {
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if ctx.Err() != nil {
			return
		}
		if time.Now().After(end) {
			w.t.Errorf("never: %s", what)
			return
		}
	}
}

// stopInProbe leaves worker 0 stopped in the middle of a probe.
func (w *chaosWorld) stopInProbe(ctx context.Context) {
	w.goOn()
	p := w.workers[0]
	w.await(ctx, "worker 0 is in a probe", func() bool {
		if p.holds.Load() == 0 {
			return false
		}
		p.signal(syscall.SIGSTOP)
		time.Sleep(100 * time.Millisecond) // what it had said by then is read
		if p.holds.Load() > 0 {
			return true
		}
		p.signal(syscall.SIGCONT)
		return false
	})
}

// slowFirst makes worker 0 slow enough to be caught in a probe.
func slowFirst(w *chaosWorld) { w.roles[0].Delay = 500 * time.Millisecond }

func killWorker(ctx context.Context, w *chaosWorld) {
	w.stopInProbe(ctx)
	w.workers[0].signal(syscall.SIGKILL)
	<-w.workers[0].ended
	w.workers[0] = w.startWorker(0) // in the same folder, which it clears of what the dead one left
}

func killServer(ctx context.Context, w *chaosWorld) {
	w.servers[0].end(syscall.SIGKILL)
	w.goOn()
	time.Sleep(time.Second) // agents go on publishing, workers go on testing
	w.servers[0] = startRole(w.t, chaosRole{Server: &w.server})
}

func threeServers(w *chaosWorld) {
	var peers []int
	for range 3 {
		peers = append(peers, freePort(w.t))
	}
	for i := range 3 {
		name := fmt.Sprint("n", i)
		w.cluster = append(w.cluster, &clusterRole{Name: name, Dir: filepath.Join(w.dir, name), Port: freePort(w.t), Peer: peers[i], Peers: peers})
	}
	w.pc.Streams.Replicas = 3
}

// killLeader kills the server that leads the stream of requests.
func killLeader(ctx context.Context, w *chaosWorld) {
	s, err := w.js.Stream(ctx, w.prober.names.probes())
	if err != nil {
		w.t.Errorf("the stream: %v", err)
		return
	}
	info := s.CachedInfo()
	if info.Config.Replicas != 3 || info.Cluster == nil {
		w.t.Errorf("the stream is not replicated: %+v", info)
		return
	}
	for i, c := range w.cluster {
		if c.Name == info.Cluster.Leader {
			w.servers[i].end(syscall.SIGKILL)
			w.killed = c.Name
			return
		}
	}
	w.t.Errorf("no server is called %q", info.Cluster.Leader)
}

// killTwo leaves one of three servers, which takes nothing: there is no quorum. Then it brings both back, one by one.
func killTwo(ctx context.Context, w *chaosWorld) {
	killLeader(ctx, w)
	w.goOn()
	time.Sleep(time.Second) // the two that are left elect a leader
	first := slices.IndexFunc(w.cluster, func(c *clusterRole) bool { return c.Name == w.killed })
	if first < 0 {
		return
	}
	second := (first + 1) % 3
	w.servers[second].end(syscall.SIGKILL)
	w.await(ctx, "nothing can be stored", func() bool { return w.prober.Stats().PublishErrors > 0 || workersSaid("publish result")(w) })
	time.Sleep(2 * time.Second)
	for _, i := range []int{second, first} {
		w.servers[i] = startRole(w.t, chaosRole{Cluster: w.cluster[i]})
		time.Sleep(time.Second)
	}
}

func pauseWorker(ctx context.Context, w *chaosWorld) {
	w.stopInProbe(ctx)
	w.await(ctx, "another worker took the probe over", func() bool { return w.prober.Stats().Redelivered > 0 })
	w.workers[0].signal(syscall.SIGCONT) // it publishes what it was thought to have lost
}

func faultyWorkers(w *chaosWorld) {
	for _, r := range w.roles {
		r.Faults = true
	}
}

// tamper does to requests what faultyJetStream does to results: it doubles them, hands them back in the wrong order and
// replaces them by damaged copies.
func tamper(ctx context.Context, w *chaosWorld) {
	w.goOn()
	s, err := w.js.Stream(ctx, w.prober.names.probes())
	if err != nil {
		w.t.Errorf("the stream: %v", err)
		return
	}
	q, err := s.Consumer(ctx, w.prober.names.queue(milepost.ProbeStep))
	if err != nil {
		w.t.Errorf("the queue: %v", err)
		return
	}
	for n := range 12 {
		switch n % 3 {
		case 0:
			tamperWith(ctx, w, s, false)
		case 1:
			tamperWith(ctx, w, s, true)
		case 2:
			batch, err := q.FetchNoWait(3)
			if err != nil {
				continue
			}
			var taken []jetstream.Msg
			for m := range batch.Messages() {
				taken = append(taken, m)
			}
			for i := len(taken) - 1; i >= 0; i-- {
				_ = taken[i].NakWithDelay(time.Duration(len(taken)-i) * 50 * time.Millisecond)
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// tamperWith doubles the newest request, or puts a damaged copy in its place.
func tamperWith(ctx context.Context, w *chaosWorld, s jetstream.Stream, damaged bool) {
	info, err := s.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return
	}
	raw, err := s.GetMsg(ctx, info.State.LastSeq)
	if err != nil {
		return // served meanwhile
	}
	m := nats.NewMsg(raw.Subject)
	m.Data = append([]byte(nil), raw.Data...)
	m.Header.Set(messages.SumHeader, raw.Header.Get(messages.SumHeader))
	if damaged {
		m.Data[len(m.Data)/2] ^= 0x20
		if s.DeleteMsg(ctx, raw.Sequence) != nil {
			return
		}
	}
	_, _ = w.js.PublishMsg(ctx, m)
}
