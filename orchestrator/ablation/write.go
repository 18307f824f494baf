package ablation

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

// Write writes ablation.md, ablation.html and the CSV files into dir, each whole or not at all.
func Write(dir string, s Study, r Result) error {
	var md, html bytes.Buffer
	if err := errors.Join(WriteMarkdown(&md, s, r), WriteHTML(&html, s, r)); err != nil {
		return err
	}
	if err := writeFile(dir, "ablation.md", md.Bytes()); err != nil {
		return err
	}
	if err := writeFile(dir, "ablation.html", html.Bytes()); err != nil {
		return err
	}
	return WriteCSV(dir, s, r)
}

// writeFile writes and renames, so that a reader sees the old file or the new one.
func writeFile(dir, name string, data []byte) error {
	op := "ablation: write " + name
	tmp, err := os.CreateTemp(dir, ".ablation-*")
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, name))
	}
	return milepost.Wrap(op, milepost.KindUnavailable, err)
}
