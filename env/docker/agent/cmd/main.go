// Command cmd is the agent alone, as small as it can be: for tests, whose own executable may be linked dynamically, and
// for a Milepost that is (sandbox.docker.agent).
//
//	CGO_ENABLED=0 go build -o milepost-agent ./env/docker/agent/cmd
package main

import (
	"fmt"
	"os"

	"github.com/milepost-rl/milepost/env/docker/agent"
)

func main() {
	fmt.Fprintf(os.Stderr, "this program runs in containers only, as %s\n", agent.Path)
	os.Exit(2)
}
