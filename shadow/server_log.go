package shadow

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// fatalLog keeps the last error that the embedded server reported while starting, so that a failed start can say why
// (port in use, folder not writable), and that its disk is full afterwards. The server's notices are dropped: its state is in the prober's Stats.
type fatalLog struct {
	mu    sync.Mutex
	text  string
	fatal bool // it has given up
	full  bool // a write failed for want of room since takeFull was last asked
}

// note takes an error that the server reported: typed, where it passes one on.
func (l *fatalLog) note(v []any) {
	for _, x := range v {
		if err, ok := x.(error); ok && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) {
			l.mu.Lock()
			l.full = true
			l.mu.Unlock()
		}
	}
}

// takeFull reports whether a write has failed for want of room, and forgets it.
func (l *fatalLog) takeFull() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := l.full
	l.full = false
	return full
}

func (l *fatalLog) keep(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = fmt.Sprintf(format, v...)
}

func (l *fatalLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" {
		return "it gave no reason"
	}
	return l.text
}

func (l *fatalLog) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

// Fatalf is called once the server gives up; errors that came before it say more than it does only rarely.
func (l *fatalLog) Fatalf(format string, v ...any) {
	l.keep(format, v...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = true
}

// Errorf is called where the server goes on.
func (l *fatalLog) Errorf(format string, v ...any) {
	l.keep(format, v...)
	l.note(v)
}

func (l *fatalLog) Warnf(_ string, v ...any) { l.note(v) }
func (l *fatalLog) Noticef(string, ...any)   {}
func (l *fatalLog) Debugf(string, ...any)    {}
func (l *fatalLog) Tracef(string, ...any)    {}
