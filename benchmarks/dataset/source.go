package dataset

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// source is a file of rows, or a set of task folders.
type source struct {
	name  string // as a person is shown it
	path  string // local path of a file; "" for folders
	split string // the data set's own split, by the file's name; "" where it names none
	open  func(ctx context.Context) (reader, error)
}

// dataEndings are the names of files that hold rows.
var dataEndings = []string{".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz"}

// notData are JSON files that describe a data set and hold no rows of it.
var notData = map[string]bool{"dataset_info.json": true, "dataset_infos.json": true, "dataset_dict.json": true, "state.json": true,
	"config.json": true, "package.json": true}

func isData(p string) bool {
	base := path.Base(filepath.ToSlash(p))
	if notData[base] || strings.HasPrefix(base, ".") {
		return false
	}
	return slices.ContainsFunc(dataEndings, func(e string) bool { return strings.HasSuffix(base, e) })
}

var shard = regexp.MustCompile(`^(.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]{16})?$`)

// knownSplits are the words that name a split by themselves.
var knownSplits = []string{"train", "test", "dev", "validation", "valid", "filtered", "tool"}

// splitOf is the split that a file's name declares, by the conventions of the hub: data/test-00000-of-00001.parquet,
// test.jsonl, or test/0000.parquet.
func splitOf(p string) string {
	p = filepath.ToSlash(p)
	base := path.Base(p)
	for _, e := range dataEndings {
		base = strings.TrimSuffix(base, e)
	}
	if m := shard.FindStringSubmatch(base); m != nil {
		return m[1]
	}
	if slices.Contains(knownSplits, base) {
		return base
	}
	if dir := path.Base(path.Dir(p)); slices.Contains(knownSplits, dir) {
		return dir
	}
	return ""
}

// chooseSplit keeps the files of the wanted split. Without a wish, files of several splits are an error: they are rarely
// meant to be mixed.
func chooseSplit[T any](files []T, splitOf func(T) string, want, where string) ([]T, error) {
	const op = "dataset: split"
	splits := map[string]bool{}
	for _, f := range files {
		splits[splitOf(f)] = true
	}
	names := []string{}
	for s := range splits {
		if s != "" {
			names = append(names, s)
		}
	}
	slices.Sort(names)
	switch {
	case want == "" && len(splits) > 1:
		return nil, milepost.E(op, milepost.KindInvalid, "%s holds splits %s; choose one with --split", where, strings.Join(names, ", "))
	case want == "":
		return files, nil
	case !splits[want]:
		return nil, milepost.E(op, milepost.KindInvalid, "%s has no split %q; its files name: %s", where, want, strings.Join(names, ", "))
	}
	return slices.DeleteFunc(slices.Clone(files), func(f T) bool { return splitOf(f) != want }), nil
}

// localSources are the sources of a local file or folder.
func localSources(from, split string) ([]source, error) {
	const op = "dataset: open"
	info, err := os.Stat(from)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	if !info.IsDir() {
		if !isData(from) {
			return nil, milepost.E(op, milepost.KindInvalid, "%s: its name ends in none of %s", from, strings.Join(dataEndings, ", "))
		}
		s := fileSource(from, from)
		if split != "" && split != s.split {
			return nil, milepost.E(op, milepost.KindInvalid, "%s is one file, of split %q; --split %s chooses among the files of a folder", from, s.split, split)
		}
		return []source{s}, nil
	}
	kind, dirs, err := findFolders(from)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if len(dirs) > 0 {
		return []source{{name: from, open: func(context.Context) (reader, error) { return &folderRows{kind: kind, dirs: dirs}, nil }}}, nil
	}
	return folderSources(from, split)
}

// folderSources are the data files below a folder, in the order of their names.
func folderSources(from, split string) ([]source, error) {
	const op = "dataset: open"
	var all []source
	err := fs.WalkDir(os.DirFS(from), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !isData(p):
			return nil
		}
		full := filepath.Join(from, filepath.FromSlash(p))
		info, err := os.Stat(full) // behind a symbolic link too: the cache of huggingface_hub is made of them
		if err == nil && info.Mode().IsRegular() {
			all = append(all, fileSource(full, full))
		}
		return err
	})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if len(all) == 0 {
		return nil, milepost.E(op, milepost.KindInvalid,
			"%s holds no data: files that end in %s are wanted, or folders with instruction.md and task.toml, or with start.md and test_commands.json",
			from, strings.Join(dataEndings, ", "))
	}
	return chooseSplit(all, func(s source) string { return s.split }, split, from)
}

// fileSource is one data file under the name that messages give it.
func fileSource(p, name string) source {
	return source{name: name, path: p, split: splitOf(name), open: func(ctx context.Context) (reader, error) {
		if strings.HasSuffix(p, ".parquet") {
			return openParquet(ctx, p, name)
		}
		return openJSON(p, name)
	}}
}
