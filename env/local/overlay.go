package local

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// overlayEscape protects the characters that separate mount options and layers.
var overlayEscape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`)

func (w *workspace) upper() string { return filepath.Join(w.scratch(), "upper") }

// mountOverlay lays an empty upper layer over the base. Renamed directories are recorded as redirects (a plain rename
// of a directory works, as programs expect); inode and metadata tricks that upper-layer walks would have to know are off.
func (w *workspace) mountOverlay() error {
	work := filepath.Join(w.scratch(), "work")
	for _, p := range []string{w.upper(), work, w.path()} {
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
	}
	opts := "lowerdir=" + overlayEscape.Replace(w.base) + ",upperdir=" + overlayEscape.Replace(w.upper()) +
		",workdir=" + overlayEscape.Replace(work) + ",redirect_dir=on,metacopy=off,index=off,xino=off"
	if err := unix.Mount("milepost", w.path(), "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return &os.PathError{Op: "mount overlay", Path: w.path(), Err: err}
	}
	if w.mount == "" {
		w.mount = w.path()
	}
	return nil
}
