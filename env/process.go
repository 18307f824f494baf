package env

import (
	"io"

	"github.com/milepost-rl/milepost/env/driver"
)

// Process is a command that [Sandbox.Start] runs. Whoever started it calls Wait, after Kill or the end of its input.
type Process struct {
	Stdin  io.WriteCloser // closing it is the polite way to ask for the end
	Stdout io.Reader      // ends with the process; must be read, or the process blocks

	driver driver.Process
}

// Kill ends the whole process tree. It may be called at any time, and again.
func (p *Process) Kill() { p.driver.Kill() }

// Wait returns once no process of the command is left. Result.Stdout is empty, Result.Stderr holds the first bytes, up
// to Limits.Output. It may be called again and returns the same. Kind: unavailable.
func (p *Process) Wait() (Result, error) {
	r, err := p.driver.Wait()
	if err != nil {
		return Result{}, classify("env: wait", err)
	}
	return *r, nil
}
