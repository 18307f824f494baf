package dataset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

// Options say what is imported and where to.
type Options struct {
	From        string   // a file, a folder, or hf://OWNER/NAME[@REVISION]
	Out         string   // folder of the task set; must not hold one
	Format      string   // name of a [Format]; "" = recognised by the columns of each file's first row
	Split       string   // split of the data set, by its files' names; "" = all, where there is one
	Limit       int      // at most so many tasks; 0 = all
	IDs         []string // instance ids to take, as the data set spells them; empty = all
	Assets      string   // folder of files that rows name but do not hold; "" = beside the data
	ImagePrefix string   // registry, with what leads to the images, put before names that have no registry of their own
	SkipInvalid bool     // leave faulty rows out and list them, instead of ending at the first
	Hub         *Hub     // for hf:// addresses
	Progress    func(tasks int)
}

// Summary says what an import did.
type Summary struct {
	Tasks   int            `json:"tasks"`
	Formats map[string]int `json:"formats"`           // tasks of each form
	Left    map[string]int `json:"left,omitempty"`    // columns that are in the kept rows alone, and in how many
	Folded  int            `json:"folded,omitempty"`  // tasks in whose lists a test's name came twice
	Missing map[string]int `json:"missing,omitempty"` // files that rows name and that were not found, by name or ending
	Skipped []string       `json:"skipped,omitempty"` // faults of the rows that were left out
}

// importer is one import under way.
type importer struct {
	opts   Options
	out    *benchmarks.Writer
	assets *Assets
	want   map[string]bool     // ids still wanted; nil = all
	seen   map[string]rowPlace // by task id
	sum    Summary
}

type rowPlace struct {
	file string
	row  int
}

// Import reads a data set and writes it as a task set, rows beside it. The set appears whole or not at all; memory grows
// with the ids alone, not with the rows. Errors name file, row, instance and column.
func Import(ctx context.Context, opts Options) (_ Summary, err error) {
	if opts.Format != "" {
		if _, err := formatNamed(opts.Format); err != nil {
			return Summary{}, err
		}
	}
	sources, find, err := openSources(ctx, opts)
	if err != nil {
		return Summary{}, err
	}
	out, err := benchmarks.NewWriter(opts.Out)
	if err != nil {
		return Summary{}, err
	}
	defer out.Abort()
	im := &importer{opts: opts, out: out, seen: map[string]rowPlace{},
		assets: &Assets{find: find, out: out.Dir(), missing: map[string]int{}},
		sum:    Summary{Formats: map[string]int{}, Left: map[string]int{}}}
	if len(opts.IDs) > 0 {
		im.want = map[string]bool{}
		for _, id := range opts.IDs {
			im.want[id] = true
		}
	}
	for _, s := range sources {
		if err := im.source(ctx, s); errors.Is(err, errEnough) {
			break
		} else if err != nil {
			return Summary{}, err
		}
	}
	return im.finish()
}

// errEnough ends an import that has what it wants.
var errEnough = errors.New("enough")

// openSources finds the files, and how further files that rows name are found.
func openSources(ctx context.Context, opts Options) ([]source, func(string) (string, bool, error), error) {
	if !strings.HasPrefix(opts.From, HubScheme) {
		sources, err := localSources(opts.From, opts.Split)
		beside := opts.From
		if len(sources) == 1 && sources[0].path == opts.From {
			beside = filepath.Dir(opts.From)
		}
		return sources, findBelow(roots(opts.Assets, beside)...), err
	}
	if opts.Hub == nil {
		return nil, nil, milepost.E("dataset: import", milepost.KindInternal, "%s: no hub is given", opts.From)
	}
	repo, err := opts.Hub.open(ctx, opts.From)
	if err != nil {
		return nil, nil, err
	}
	sources, err := repo.sources(opts.Split)
	find := repo.find(ctx)
	if opts.Assets != "" {
		find = findBelow(opts.Assets)
	}
	return sources, find, err
}

// roots is where assets are looked for: where they are said to be, else beside the data.
func roots(assets, beside string) []string {
	if assets != "" {
		return []string{assets}
	}
	return []string{beside}
}

// source imports one file.
func (im *importer) source(ctx context.Context, s source) (err error) {
	r, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var format *Format
	for {
		if err := ctx.Err(); err != nil {
			return milepost.Wrap("dataset: import", milepost.KindCanceled, err)
		}
		row, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if err = im.skip(err); err != nil {
				return err
			}
			continue
		}
		if format == nil {
			if format, err = im.format(row); err != nil {
				return faultAt(row.File, row.Number, idIn(row.cols, nil), err)
			}
		}
		if err := im.row(row, format, s.split); err != nil {
			return err
		}
	}
}

// skip notes a faulty row that may be left out; only rows that were read whole can be.
func (im *importer) skip(err error) error {
	if !im.opts.SkipInvalid || milepost.KindOf(err) != milepost.KindInvalid || errors.As(err, new(unreadableError)) {
		return err
	}
	im.sum.Skipped = append(im.sum.Skipped, err.Error())
	return nil
}

// format is the form of a file, by name or by its first row.
func (im *importer) format(row *Row) (*Format, error) {
	if im.opts.Format != "" {
		return formatNamed(im.opts.Format)
	}
	return recognise(row)
}

// row imports one row.
func (im *importer) row(row *Row, f *Format, split string) error {
	id := f.id(row)
	if im.want != nil && !im.want[id] {
		return nil
	}
	t, err := im.task(row, f, id)
	if err != nil {
		var own *milepost.Error
		if errors.As(err, &own) && own.Kind.Infra() { // the disk's fault, not the row's
			return err
		}
		return im.skip(faultAt(row.File, row.Number, id, bare(err)))
	}
	left := keepMeta(row, t)
	setMeta(t, "dataset_split", split)
	cols, err := json.Marshal(row.cols)
	if err != nil {
		return milepost.Wrap("dataset: import", milepost.KindInternal, err)
	}
	kept := &benchmarks.Row{Task: t.ID, File: row.File, Row: row.Number, Cols: cols}
	if err := im.out.Add(t, kept); err != nil {
		return im.skip(faultAt(row.File, row.Number, id, bare(err)))
	}
	im.seen[t.ID] = rowPlace{row.File, row.Number}
	im.count(f, t, left)
	return im.enough(id)
}

// count adds a task to the summary.
func (im *importer) count(f *Format, t *milepost.Task, left []string) {
	im.sum.Tasks++
	im.sum.Formats[f.Name]++
	for _, c := range left {
		im.sum.Left[c]++
	}
	if t.Meta["tests_folded"] != "" {
		im.sum.Folded++
	}
	if im.opts.Progress != nil {
		im.opts.Progress(im.sum.Tasks)
	}
}

// enough ends the import where everything wanted is there.
func (im *importer) enough(id string) error {
	delete(im.want, id)
	if im.want != nil && len(im.want) == 0 || im.opts.Limit > 0 && im.sum.Tasks >= im.opts.Limit {
		return errEnough
	}
	return nil
}

// task maps a row and fills in what is the same for every data set.
func (im *importer) task(row *Row, f *Format, id string) (*milepost.Task, error) {
	if missing := f.missing(row); len(missing) > 0 {
		return nil, fmt.Errorf("%s wants column %s; there are %s", f.Name, strings.Join(missing, ", "), strings.Join(row.Columns(), ", "))
	}
	if row.Err() == nil && strings.TrimSpace(id) == "" {
		row.fail("instance_id", "missing or empty; an id is wanted")
	}
	if row.Err() != nil {
		return nil, row.Err()
	}
	name := safeID(id)
	if was, ok := im.seen[name]; ok {
		return nil, &columnError{"instance_id", fmt.Errorf("%q is also the id of row %d of %s; an id comes once", id, was.row, was.file)}
	}
	t, err := f.Map(row, im.assets)
	if row.Err() != nil {
		return nil, row.Err()
	}
	if err != nil {
		return nil, err
	}
	row.use("instance_id")
	t.ID = name
	t.Image = withPrefix(im.opts.ImagePrefix, t.Image)
	t.Origin = &milepost.Origin{Dataset: f.Name, ID: id, Repo: repoOf(row), File: row.File, Row: row.Number}
	t.Source = fmt.Sprintf("%s %s", f.Name, id)
	return t, nil
}

// repoOf is the upstream repository as the row spells it; a user of its own comes first.
func repoOf(row *Row) string {
	repo := row.Scalar("repo", "repo_name")
	if user := row.Scalar("user"); user != "" && repo != "" && !strings.Contains(repo, "/") {
		return user + "/" + repo
	}
	return repo
}

// withPrefix puts a registry before an image's name that has none: a name's first part is one where it has a dot or a
// colon, or is localhost.
func withPrefix(prefix, image string) string {
	if prefix == "" || strings.HasPrefix(image, "build:") {
		return image
	}
	first, _, more := strings.Cut(image, "/")
	if more && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return image
	}
	return strings.TrimRight(prefix, "/") + "/" + image
}

// bare takes the message out of an error that is about to be placed anew.
func bare(err error) error {
	var e *milepost.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// finish makes the set appear.
func (im *importer) finish() (Summary, error) {
	const op = "dataset: import"
	if len(im.want) > 0 {
		var ids []string
		for id := range im.want {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		return Summary{}, milepost.E(op, milepost.KindNotFound, "%s has no instance %s", im.opts.From, strings.Join(ids, ", "))
	}
	if im.sum.Tasks == 0 {
		return Summary{}, milepost.E(op, milepost.KindInvalid, "%s gave no task (%d rows were faulty)", im.opts.From, len(im.sum.Skipped))
	}
	im.sum.Missing = im.assets.missing
	return im.sum, im.out.Commit()
}
