package docker

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"io"
	"os"
	"path"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/agent"
)

// findAgent returns the path of the program to put into containers. It must not need a loader, which an image may lack.
func (c *Config) findAgent() (string, error) {
	const op = "env/docker: configure"
	name, advice := c.Agent, "build it with CGO_ENABLED=0"
	if name == "" {
		var err error
		if name, err = os.Executable(); err != nil {
			return "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		advice = "build Milepost with CGO_ENABLED=0 (make build does), or name a program in sandbox.docker.agent: CGO_ENABLED=0 go build ./env/docker/agent/cmd"
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

// agentTar is the program as a tar stream, to be unpacked in the directory of agent.Path.
func agentTar(program string) (io.Reader, error) {
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: path.Base(agent.Path), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	return &buf, w.Close()
}
