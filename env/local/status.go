package local

import (
	"bufio"
	"encoding/json"
	"io"
)

// status is what bubblewrap reports on its status descriptor, one JSON document a line.
type status struct {
	child chan int // receives the host's id of the sandbox's process 1, then is closed; only closed where none came
	done  chan struct{}
	exit  int  // valid after done, where ended
	ended bool // the command ran and ended; false where it never started or bubblewrap was killed
}

func readStatus(r io.ReadCloser) *status {
	s := &status{child: make(chan int, 1), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer r.Close()
		sent := false
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			var m struct {
				Child *int `json:"child-pid"`
				Exit  *int `json:"exit-code"`
			}
			if json.Unmarshal(sc.Bytes(), &m) != nil {
				continue // cut short by a kill; what is missing shows in ended
			}
			if m.Child != nil && !sent {
				sent = true
				s.child <- *m.Child
				close(s.child)
			}
			if m.Exit != nil {
				s.exit, s.ended = *m.Exit, true
			}
		}
		if !sent {
			close(s.child)
		}
	}()
	return s
}
