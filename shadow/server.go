package shadow

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
)

// Server is the NATS server embedded in this process, with JetStream on a file store. What it had acknowledged survives a
// restart on the same Dir; a machine that loses power may lose the last moments, which the prober then publishes again.
type Server struct {
	srv  *server.Server
	cfg  ServerConfig
	log  *fatalLog
	once sync.Once
	stop chan struct{} // closed by Close
	done chan struct{} // closed when watch has ended
}

const maxMemory = 64 << 20 // bytes of streams in memory; Milepost's are on disk

// StartServer starts the server and waits until it takes connections. Errors: KindInvalid for the configuration,
// KindUnavailable for a taken port, a folder that cannot be written or a server that does not come up.
func StartServer(cfg ServerConfig) (*Server, error) {
	const op = "shadow: start server"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	port := cfg.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	opts := &server.Options{ServerName: "milepost", Host: cfg.Host, Port: port, DontListen: !cfg.Listen, NoSigs: true, NoLog: true,
		Authorization: cfg.Token, MaxPayload: cfg.MaxPayload, JetStream: true, StoreDir: cfg.Dir, JetStreamMaxStore: cfg.MaxStore,
		JetStreamMaxMemory: maxMemory}
	if cfg.TLSCert != "" {
		tc, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey})
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindInvalid, err)
		}
		opts.TLSConfig, opts.TLS, opts.TLSTimeout = tc, true, 10
		opts.AllowNonTLS = false
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	failed := &fatalLog{}
	s.SetLoggerV2(failed, false, false, false)
	s.Start()
	ready := false
	for end := time.Now().Add(20 * time.Second); !ready && !failed.dead() && time.Now().Before(end); {
		ready = s.ReadyForConnections(50 * time.Millisecond)
	}
	if !ready || !s.JetStreamEnabled() {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, milepost.E(op, milepost.KindUnavailable, "the NATS server did not come up (store %s, listen %v on %s:%d): %s",
			cfg.Dir, cfg.Listen, cfg.Host, cfg.Port, failed.last())
	}
	out := &Server{srv: s, cfg: cfg, log: failed, stop: make(chan struct{}), done: make(chan struct{})}
	go out.watch()
	return out, nil
}

// watchEvery is how often the server is looked after.
const watchEvery = time.Second

// watch brings JetStream back from a full disk. After a write has failed, nats-server 2.15 refuses every further write to
// that stream, or switches JetStream off altogether, for good, room or no room; only starting it anew helps. What was
// acknowledged before is in the store; publishers and workers report meanwhile, and try until it is back.
func (s *Server) watch() {
	defer close(s.done)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	full := false
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		full = s.log.takeFull() || full || !s.srv.JetStreamEnabled()
		if !full || !s.srv.Running() || !s.hasRoom() {
			continue
		}
		if s.srv.JetStreamEnabled() {
			_ = s.srv.ShutdownJetStream() // it flushes what it can; what it loses is published again
		}
		s.log.takeFull()
		full = s.srv.EnableJetStream(&server.JetStreamConfig{StoreDir: s.cfg.Dir, MaxMemory: maxMemory, MaxStore: s.cfg.MaxStore}) != nil
	}
}

// hasRoom reports whether the store's disk takes a block of data.
func (s *Server) hasRoom() bool {
	f, err := os.CreateTemp(s.cfg.Dir, "room")
	if err != nil {
		return false
	}
	_, err = f.Write(make([]byte, 1<<20))
	return errors.Join(err, f.Close(), os.Remove(f.Name())) == nil
}

// URL is where other processes connect, "" when the server does not listen.
func (s *Server) URL() string {
	if !s.cfg.Listen {
		return ""
	}
	return s.srv.ClientURL()
}

// Connect opens an in-process connection, which needs no port. The caller closes it.
func (s *Server) Connect(name string) (*nats.Conn, error) {
	opts := append(commonOptions(name), nats.InProcessServer(s.srv))
	if s.cfg.Token != "" {
		opts = append(opts, nats.Token(s.cfg.Token))
	}
	nc, err := nats.Connect(nats.DefaultURL, opts...)
	if err != nil {
		return nil, milepost.Wrap("shadow: connect", milepost.KindUnavailable, err)
	}
	return nc, nil
}

// Close stops the server and waits until its files are closed.
func (s *Server) Close() {
	s.once.Do(func() { close(s.stop) })
	<-s.done
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}
