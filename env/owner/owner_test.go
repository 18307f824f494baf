package owner

import (
	"os"
	"testing"
)

func TestAlive(t *testing.T) {
	mine, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		p    Process
		want bool
	}{
		"me":                {Process{PID: os.Getpid(), Start: mine, Boot: Boot()}, true},
		"my id, earlier":    {Process{PID: os.Getpid(), Start: "1", Boot: Boot()}, false},
		"before the reboot": {Process{PID: os.Getpid(), Start: mine, Boot: "another"}, false},
		"nobody":            {Process{PID: 1 << 22, Start: mine, Boot: Boot()}, false},
	} {
		if c.p.Alive() != c.want {
			t.Errorf("%s: alive is %v", name, !c.want)
		}
	}
}
