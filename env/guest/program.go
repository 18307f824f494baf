package guest

import (
	"debug/elf"
	"os"

	"github.com/milepost-rl/milepost"
)

// Program returns the path of the program to put into sandboxes as process 1: name, or this very program where name is "".
// It must not need a loader, which an image may lack. setting is the configuration's field, for the error, which is of
// KindInvalid.
func Program(name, setting string) (string, error) {
	const op = "env/guest: find the agent"
	advice := "build it with CGO_ENABLED=0"
	if name == "" {
		var err error
		if name, err = os.Executable(); err != nil {
			return "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		advice = "build Milepost with CGO_ENABLED=0 (make build does), or name a program in " + setting + ": CGO_ENABLED=0 go build ./env/docker/agent/cmd"
	}
	f, err := elf.Open(name)
	if err != nil {
		return "", milepost.E(op, milepost.KindInvalid, "agent %s: %v", name, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", milepost.E(op, milepost.KindInvalid, "agent %s is linked dynamically and would not run in every image; %s", name, advice)
		}
	}
	return name, nil
}
