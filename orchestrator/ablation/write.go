package ablation

import (
	"bytes"
	"errors"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
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

func writeFile(dir, name string, data []byte) error {
	return milepost.Wrap("ablation: write "+name, milepost.KindUnavailable, orchestrator.WriteWhole(filepath.Join(dir, name), data))
}
