package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	milepost "github.com/milepost-rl/milepost"
)

// Config says whether Prometheus can read a process.
type Config struct {
	Listen string `yaml:"listen"` // HOST:PORT that serves /metrics and /healthz, without authentication; port 0 = any free one, "" = none
}

// Validate checks every field.
func (c Config) Validate() error {
	if c.Listen == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		return milepost.E("telemetry: configuration", milepost.KindInvalid, "listen is %q; allowed: HOST:PORT, or nothing for no endpoint", c.Listen)
	}
	return nil
}

// Server serves a registry. No goroutine of it outlives Close.
type Server struct {
	http *http.Server
	at   net.Addr
	done chan error
}

// Serve listens and serves the collectors, with the Go runtime's and the process's own beside them, until Close. Health is
// asked at /healthz: nil is 200, an error 503 with its text. The error of Serve is KindConflict where the address cannot be had.
func Serve(cfg Config, health func() error, all ...prometheus.Collector) (*Server, error) {
	const op = "telemetry: serve"
	registry := prometheus.NewRegistry()
	for _, c := range append(all, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		if err := registry.Register(c); err != nil {
			return nil, milepost.Wrap(op, milepost.KindInternal, err)
		}
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, milepost.E(op, milepost.KindConflict, "metrics.listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // the client may be gone
	})
	s := &Server{http: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, at: l.Addr(), done: make(chan error, 1)}
	go func() { s.done <- s.http.Serve(l) }()
	return s, nil
}

// URL is the address of /metrics.
func (s *Server) URL() string { return "http://" + s.at.String() + "/metrics" }

// Close stops serving.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return milepost.Wrap("telemetry: close", milepost.KindUnavailable, err)
}
