package agent

import (
	"fmt"
	"os"
	"time"
)

// Path is where the program lies in a container; Main of any program that imports this package is the agent's there.
const Path = "/.milepost/agent"

// Workspace is the directory that the agent serves where the Spec names no other.
const Workspace = "/workspace"

// Base is where a container sees the volume that its workspace is copied from (OpCopy).
const Base = "/.milepost-base"

const (
	serveRole     = "serve"
	superviseRole = "supervise"
)

// Argv is the command line of process 1, which serves Workspace.
func Argv(lease time.Duration) []string { return ArgvAt(lease, Workspace) }

// ArgvAt is the command line of process 1 that serves another directory.
func ArgvAt(lease time.Duration, root string) []string {
	return []string{Path, serveRole, lease.String(), root}
}

// The driver puts its own executable into the container. There this package takes over before the rest of the program
// begins, as the re-execution of Docker's own tools does.
func init() {
	if len(os.Args) < 2 || os.Args[0] != Path {
		return
	}
	code, err := 2, error(nil)
	switch os.Args[1] {
	case serveRole:
		code, err = serveMain(os.Args[2:])
	case superviseRole:
		code, err = superviseMain()
	default:
		err = fmt.Errorf("%q is not a role", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
	}
	os.Exit(code)
}

func serveMain(args []string) (int, error) {
	if len(args) != 2 {
		return 2, fmt.Errorf("usage: %s %s LEASE ROOT", Path, serveRole)
	}
	lease, err := time.ParseDuration(args[0])
	if err != nil {
		return 2, err
	}
	if err := protect(); err != nil {
		return 1, err
	}
	s, err := newServer(args[1], []string{"/tmp", "/dev/shm"})
	if err != nil {
		return 1, err
	}
	if err := s.serve(stdio{}, lease); err != nil {
		return 1, err
	}
	return 0, nil
}

// stdio is the connection to the driver.
type stdio struct{}

func (stdio) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (stdio) Write(b []byte) (int, error) { return os.Stdout.Write(b) }
func (stdio) Close() error                { return os.Stdin.Close() }
