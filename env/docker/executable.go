package docker

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path"

	"github.com/milepost-rl/milepost/env/docker/agent"
)

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
