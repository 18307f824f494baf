package dataset

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

// FoldersDir is the folder of an imported set that holds one folder of files for each task that has some.
const FoldersDir = "folders"

// Assets finds files that rows name but do not hold, and puts a task's own files into the set. A file that is not found
// is counted, so that the import can say what its tasks lack.
type Assets struct {
	find    func(name string) (path string, ok bool, err error) // name is slash separated and local
	out     string                                              // absolute folder of the set
	missing map[string]int                                      // base name, or ending, to how often
}

// look finds a file by the name a row gives it.
func (a *Assets) look(name string) (string, bool, error) {
	if !localFile(name) {
		return "", false, milepost.E("dataset: assets", milepost.KindInvalid, "file %s is no path inside the data set", short(name))
	}
	p, ok, err := a.find(name)
	if !ok && err == nil {
		kind := path.Base(name)
		if ext := path.Ext(name); ext == ".zip" || ext == ".gz" {
			kind = "*" + ext
		}
		a.missing[kind]++
	}
	return p, ok, err
}

// Text is the content of a file that a row names; ok is false, and the lack counted, where it is not found.
func (a *Assets) Text(name string) (text string, ok bool, err error) {
	p, ok, err := a.look(name)
	if !ok || err != nil {
		return "", false, err
	}
	info, err := os.Stat(p)
	if err == nil && info.Size() > MaxRow {
		return "", false, milepost.E("dataset: assets", milepost.KindInvalid, "%s: %w", p, tooLarge())
	}
	b, err := os.ReadFile(p)
	return string(b), true, milepost.Wrap("dataset: assets", milepost.KindUnavailable, err)
}

// Adopt copies a file that a row names into the task's folder, under its base name, and returns the folder.
func (a *Assets) Adopt(task, name string) (folder string, ok bool, err error) {
	p, ok, err := a.look(name)
	if !ok || err != nil {
		return "", false, err
	}
	folder = a.folder(task)
	err = errors.Join(os.MkdirAll(folder, 0o755), copyFile(p, filepath.Join(folder, baseOf(name)), 0o644))
	return folder, true, milepost.Wrap("dataset: assets", milepost.KindUnavailable, err)
}

// Put writes a file into the task's folder and returns the folder.
func (a *Assets) Put(task, name string, data []byte) (folder string, err error) {
	folder = a.folder(task)
	err = os.MkdirAll(folder, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name), data, 0o644)
	}
	return folder, milepost.Wrap("dataset: assets", milepost.KindUnavailable, err)
}

// AdoptFolder copies a whole folder, without symbolic links and what is no regular file, which are errors.
func (a *Assets) AdoptFolder(task, from string) (folder string, err error) {
	folder = a.folder(task)
	err = filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		to := filepath.Join(folder, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case !d.Type().IsRegular():
			return milepost.E("dataset: assets", milepost.KindInvalid, "%s is no regular file; a task folder holds files and folders alone", p)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return copyFile(p, to, info.Mode().Perm()|0o600)
	})
	return folder, milepost.Wrap("dataset: assets", milepost.KindUnavailable, err)
}

func (a *Assets) folder(task string) string { return filepath.Join(a.out, FoldersDir, task) }

func copyFile(from, to string, mode fs.FileMode) (err error) {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

func baseOf(name string) string { return path.Base(name) }

func cleanPath(p string) string { return path.Clean(p) }

// findBelow finds files below folders: by the path itself first, then by the base name anywhere. The tree is read once.
func findBelow(roots ...string) func(string) (string, bool, error) {
	var byBase map[string]string
	return func(name string) (string, bool, error) {
		for _, root := range roots {
			p := filepath.Join(root, filepath.FromSlash(name))
			if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
				return p, true, nil
			}
		}
		if path.Ext(name) != ".zip" { // other names repeat from task to task, so that the path alone tells them apart
			return "", false, nil
		}
		if byBase == nil {
			byBase = map[string]string{}
			for _, root := range roots {
				err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
					if err == nil && d.Type().IsRegular() && filepath.Ext(p) == ".zip" {
						byBase[filepath.Base(p)] = p
					}
					return err
				})
				if err != nil {
					return "", false, milepost.Wrap("dataset: assets", milepost.KindUnavailable, err)
				}
			}
		}
		p, ok := byBase[path.Base(name)]
		return p, ok, nil
	}
}
