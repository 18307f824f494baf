package orchestrator

import (
	"errors"
	"os"
	"path/filepath"
)

// WriteWhole writes, syncs and renames, so that a reader sees the old file or the new one. Errors are the system's; the
// caller wraps them.
func WriteWhole(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
