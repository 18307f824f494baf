package shadow

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// slowLink carries connections to a server as a bad long-distance line would: each way a packet takes latency and some
// jitter, one in loss is lost and comes after a retransmission time-out with everything behind it, as TCP delivers in order,
// and the bytes of a second are limited. Not every kernel has tc netem; this one is the same everywhere.
type slowLink struct {
	server  string
	latency time.Duration
	rto     time.Duration
	loss    int // one packet in so many
	rate    int // bytes a second, each way of each connection
	l       net.Listener

	mu      sync.Mutex
	conns   map[net.Conn]bool
	bytes   int64
	lost    int
	cuts    int
	closing bool
	wg      sync.WaitGroup
}

const slowPacket = 1400 // bytes

func openSlowLink(t *testing.T, server string) *slowLink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &slowLink{server: server, latency: 50 * time.Millisecond, rto: 200 * time.Millisecond, loss: 50, rate: 96 << 10, l: l, conns: map[net.Conn]bool{}}
	s.wg.Go(s.accept)
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		s.cut()
		s.wg.Wait()
	})
	return s
}

func (s *slowLink) url() string { return fmt.Sprint("nats://", s.l.Addr()) }

// cut breaks what is connected; the far sides connect anew.
func (s *slowLink) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	for c := range s.conns {
		_ = c.Close()
	}
}

func (s *slowLink) keep(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		_ = c.Close()
		return false
	}
	s.conns[c] = true
	return true
}

func (s *slowLink) accept() {
	for {
		near, err := s.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", s.server)
		if err != nil {
			_ = near.Close()
			continue
		}
		if !s.keep(near) || !s.keep(far) {
			continue
		}
		s.wg.Go(func() { s.carry(near, far) })
		s.wg.Go(func() { s.carry(far, near) })
	}
}

type packet struct {
	data []byte
	due  time.Time
}

// carry delivers what from sends to to, late.
func (s *slowLink) carry(from, to net.Conn) {
	line := make(chan packet, 1024)
	s.wg.Go(func() {
		defer func() { _ = to.Close() }()
		for p := range line {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close() // ends the reader, which closes line
				for range line {
				}
				return
			}
		}
	})
	defer close(line)
	var last time.Time
	buf := make([]byte, slowPacket)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			due := time.Now().Add(s.latency + rand.N(s.latency/4))
			s.mu.Lock()
			s.bytes += int64(n)
			if rand.IntN(s.loss) == 0 {
				s.lost++
				due = due.Add(s.rto)
			}
			s.mu.Unlock()
			if due.Before(last) {
				due = last
			}
			last = due.Add(time.Duration(n) * time.Second / time.Duration(s.rate))
			line <- packet{append([]byte(nil), buf[:n]...), last}
		}
		if err != nil {
			if err != io.EOF {
				_ = to.Close()
			}
			return
		}
	}
}

// slowNetwork puts both workers behind one bad line.
func slowNetwork(w *chaosWorld) {
	w.slow = openSlowLink(w.t, fmt.Sprintf("%s:%d", w.server.Host, w.server.Port))
}

// breakLine lets the agents go on and breaks the line's connections in the middle.
func breakLine(ctx context.Context, w *chaosWorld) {
	w.goOn()
	before := w.prober.Stats().Trusted
	w.await(ctx, "probes go over the line", func() bool { return w.prober.Stats().Trusted >= before+3 })
	w.slow.cut()
}

// sawSlowNetwork holds the line to what it is for: packets were lost, and every probe took at least the latency of request
// and result.
func sawSlowNetwork(w *chaosWorld) bool {
	w.slow.mu.Lock()
	lost := w.slow.lost
	w.slow.mu.Unlock()
	s := w.prober.Stats()
	served := s.Trusted - s.Cached
	return lost > 0 && served > 0 && (s.StepTime+s.VerdictTime)/time.Duration(served) > 2*w.slow.latency
}
