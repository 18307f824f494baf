package generate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/certify"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// specFile is the specification in the work tree; the statement is the same text.
const specFile = "SPEC.md"

// Make writes a set of one task, the package of the configuration to be written anew, into outDir: tasks.jsonl, its
// certificate and repos/. The same configuration gives the same task. Errors: KindInvalid for a configuration out of range, a package
// that makes no task (compiled, without steady tests, with tests that pass without it) or that the environment or the
// specification gives away; KindConflict where outDir holds tasks already; KindNotFound, KindUnavailable of the download; and what the
// checker reports.
func Make(ctx context.Context, cfg Config, check *benchmarks.Checker, outDir string) ([]*milepost.Task, error) {
	const op = "generate: make"
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if outDir, err = benchmarks.Vacant(op, outDir); err != nil {
		return nil, err
	}
	files, err := pypkg.Fetch(ctx, pypkg.Source{Package: cfg.Package, Archive: cfg.Archive, Cache: cfg.Cache, Python: cfg.Python})
	if err != nil {
		return nil, err
	}
	p, err := divide(cfg, files)
	if err != nil {
		return nil, err
	}
	s, err := specify(ctx, cfg, p)
	if err != nil {
		return nil, err
	}
	if why := told(s, p); why != "" {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: %s", cfg.Package, why)
	}
	t, err := write(cfg, files, p, s, outDir)
	if err != nil {
		return nil, err
	}
	if err := prove(ctx, cfg, p, t, check); err != nil {
		return nil, errors.Join(err, os.RemoveAll(t.Repo))
	}
	tasks := []*milepost.Task{t}
	return tasks, certify.Save(ctx, check, outDir, "generate", tasks)
}

// write makes the emptied repository and the task, as yet without tests.
func write(cfg Config, files []benchmarks.File, p *parts, s *specification, outDir string) (*milepost.Task, error) {
	id := "generate-" + strings.Replace(cfg.Package, "==", "-", 1)
	base := append(slices.Clone(p.stays), benchmarks.File{Path: specFile, Data: []byte(s.text)})
	dir := filepath.Join(outDir, "repos", id)
	if err := os.RemoveAll(dir); err != nil { // left by a run that did not come to write the task file
		return nil, milepost.Wrap("generate: make", milepost.KindUnavailable, err)
	}
	commit, tree, err := benchmarks.WriteRepo(dir, base)
	if err != nil {
		return nil, err
	}
	t := &milepost.Task{
		ID: id, Kind: milepost.RepoGeneration, Split: cfg.Split, Source: "generate " + cfg.Package, Statement: s.text,
		Repo: dir, BaseCommit: commit, BaseTree: tree, Image: cfg.Image, Protected: pypkg.Protected(files),
		Test: pypkg.TestCommand(files, cfg.Tests, cfg.Timeout),
		Meta: map[string]string{"package": cfg.Package, "modules": strconv.Itoa(len(p.code)), "names": strconv.Itoa(s.names),
			"docs": strings.Join(s.docs, ","), "docs_cut": strconv.FormatBool(s.cut)},
	}
	t.Test.Hidden = texts(p.tests)
	for _, f := range p.code {
		t.ReferencePatch += benchmarks.Added(f.Path, string(f.Data))
	}
	return t, nil
}

// prove finds the tests that count and shows that the environment does not hold the package.
func prove(ctx context.Context, cfg Config, p *parts, t *milepost.Task, check *benchmarks.Checker) error {
	const op = "generate: prove"
	found, err := searchEnvironment(ctx, cfg, p, t, check)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return milepost.E(op, milepost.KindInvalid, "the environment holds %s, which would be no task there: %s; give an interpreter without it (tasks make env)",
			cfg.Package, strings.Join(found[:min(len(found), 5)], "; "))
	}
	base, err := check.Bases.Base(ctx, t)
	if err != nil {
		return err
	}
	delta, tree, err := repo.ApplyPatch(ctx, base, t.ReferencePatch, check.Blobs)
	if err != nil {
		return err
	}
	ran, err := pypkg.Settle(t, cfg.Runs, func() (testrun.Outcome, error) { return completed(ctx, check, t, tree, delta, "the package") })
	if err != nil {
		return milepost.E(op, milepost.KindOf(err), "%s: %w: name good test files in tests, or give an interpreter that has what they import", cfg.Package, err)
	}
	if t.Test.Timeout == 0 {
		t.Test.Timeout = max(10*ran, 10*time.Second).Round(time.Second)
	}
	empty, err := completed(ctx, check, t, t.BaseTree, nil, "the emptied tree")
	if err != nil {
		return err
	}
	free := pypkg.Drop(t, func(i int) bool { return empty.Report[i] != milepost.Passed })
	t.Meta["tests_without_package"] = strconv.Itoa(len(free))
	if len(t.Tests) < cfg.MinTests {
		return milepost.E(op, milepost.KindInvalid, "%s: %d tests need the package and pass with it each time, %d are wanted", cfg.Package, len(t.Tests), cfg.MinTests)
	}
	reason, err := check.Discover(ctx, t, cfg.Runs)
	if err == nil && reason == "" && len(t.PassToPass) > 0 {
		reason = fmt.Sprintf("the emptied tree passes %s", t.PassToPass[0])
	}
	if err == nil && reason != "" {
		err = milepost.E(op, milepost.KindInvalid, "%s: %s", cfg.Package, reason)
	}
	return err
}

// completed runs the suite on one side; a run that does not come to its end is KindInvalid.
func completed(ctx context.Context, check *benchmarks.Checker, t *milepost.Task, tree string, delta []milepost.TreeChange, of string) (testrun.Outcome, error) {
	out, err := check.Runner.Run(ctx, t, tree, delta)
	if err == nil && out.Status != milepost.ProbeCompleted {
		err = milepost.E("generate: run tests", milepost.KindInvalid, "%s on %s ended as %s: %s: %s",
			strings.Join(t.Test.Argv, " "), of, out.Status, out.Reason, pypkg.LastLines(out.Log, 5))
	}
	return out, err
}
