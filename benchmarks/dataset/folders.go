package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// folderKind is a data set whose rows are folders.
type folderKind struct {
	marks []string // files that every such folder has
	read  func(dir string) (map[string]json.RawMessage, error)
}

var folderKinds = []folderKind{
	{[]string{"instruction.md", "task.toml"}, readHarbor},
	{[]string{"start.md", "test_commands.json"}, readNL2Repo},
}

// findFolders finds the task folders at root or one or two levels below, sorted; none for a folder of another sort. All
// are of one kind.
func findFolders(root string) (*folderKind, []string, error) {
	for i := range folderKinds {
		k := &folderKinds[i]
		for _, pattern := range []string{".", "*", "*/*"} {
			found, err := filepath.Glob(filepath.Join(globSafe(root), pattern, k.marks[0]))
			if err != nil {
				return nil, nil, err
			}
			var dirs []string
			for _, f := range found {
				dir := filepath.Dir(f)
				if _, err := os.Stat(filepath.Join(dir, k.marks[1])); err == nil {
					dirs = append(dirs, dir)
				}
			}
			if len(dirs) > 0 {
				slices.Sort(dirs)
				return k, dirs, nil
			}
		}
	}
	return nil, nil, nil
}

// globSafe quotes what Glob would take for a pattern.
func globSafe(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// folderRows reads one folder a row; its number is the folder's place in the sorted list.
type folderRows struct {
	kind *folderKind
	dirs []string
	at   int
}

func (f *folderRows) close() error { return nil }

func (f *folderRows) next() (*Row, error) {
	if f.at >= len(f.dirs) {
		return nil, io.EOF
	}
	dir := f.dirs[f.at]
	f.at++
	cols, err := f.kind.read(dir)
	if err != nil {
		return nil, faultAt(dir, f.at, filepath.Base(dir), err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, milepost.Wrap("dataset: read", milepost.KindInvalid, err)
	}
	cols["instance_id"], err = text(filepath.Base(abs))
	if err != nil {
		return nil, faultAt(dir, f.at, "", err)
	}
	return &Row{File: dir, Number: f.at, Folder: abs, cols: cols}, nil
}

// readHarbor takes the text files that a task is mapped from, and the hash of environment/, as columns.
func readHarbor(dir string) (map[string]json.RawMessage, error) {
	cols := map[string]json.RawMessage{}
	for _, name := range []string{"instruction.md", "task.toml", "tests/test.sh", "environment/Dockerfile", "solution/solve.sh"} {
		if err := addFile(cols, dir, name, name); err != nil {
			return nil, err
		}
	}
	env := filepath.Join(dir, "environment")
	if _, err := os.Stat(env); err == nil {
		sum, err := hashFolder(env)
		if err != nil {
			return nil, err
		}
		cols["environment"] = json.RawMessage(`"sha256:` + sum + `"`)
	}
	return cols, nil
}

// addFile makes a column of a text file; a file that is not there makes none.
func addFile(cols map[string]json.RawMessage, dir, name, column string) error {
	p := filepath.Join(dir, filepath.FromSlash(name))
	info, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Size() > MaxRow {
		err = tooLarge()
	}
	if err != nil {
		return &columnError{name, err}
	}
	b, err := os.ReadFile(p)
	if err == nil {
		cols[column], err = text(string(b))
	}
	if err != nil {
		return &columnError{name, err}
	}
	return nil
}

// hashFolder is a hash over the paths, modes and contents of a folder.
func hashFolder(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintf(h, "%q %t %d\n", filepath.ToSlash(rel), info.Mode()&0o111 != 0, info.Size())
		_, err = io.Copy(h, f)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// readNL2Repo gives the files of a project the names that the data set's table gives them.
func readNL2Repo(dir string) (map[string]json.RawMessage, error) {
	cols := map[string]json.RawMessage{}
	for column, name := range map[string]string{"start_instruction": "start.md", "verify_cmd": "test_commands.json",
		"verify_files": "test_files.json", "test_cases_num": "test_case_count.txt"} {
		if err := addFile(cols, dir, name, column); err != nil {
			return nil, err
		}
		if _, ok := cols[column]; !ok {
			return nil, &columnError{column, fmt.Errorf("file %s is missing; start.md, test_commands.json, test_files.json and test_case_count.txt are wanted", name)}
		}
	}
	return cols, nil
}
