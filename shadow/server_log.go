package shadow

import (
	"fmt"
	"sync"
)

// fatalLog keeps the last error that the embedded server reported while starting, so that a failed start can say why
// (port in use, folder not writable). The server's notices are dropped: its state is in the prober's Stats.
type fatalLog struct {
	mu    sync.Mutex
	text  string
	fatal bool // it has given up
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

func (l *fatalLog) Errorf(format string, v ...any) { l.keep(format, v...) }
func (l *fatalLog) Warnf(string, ...any)           {}
func (l *fatalLog) Noticef(string, ...any)         {}
func (l *fatalLog) Debugf(string, ...any)          {}
func (l *fatalLog) Tracef(string, ...any)          {}
