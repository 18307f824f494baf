package mine

import (
	"bytes"
	"context"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// layReleases writes both releases as commits of a repository in dir and returns their ids.
func layReleases(ctx context.Context, cfg Config, dir string) (r repository, from, to string, err error) {
	const op = "mine: releases"
	if err := os.RemoveAll(dir); err != nil {
		return r, "", "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	store, err := git.PlainInit(dir, true)
	if err != nil {
		return r, "", "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	var ids []string
	for _, side := range []struct{ name, pkg, archive string }{{"old", cfg.Old, cfg.OldArchive}, {"new", cfg.New, cfg.NewArchive}} {
		files, err := pypkg.Fetch(ctx, pypkg.Source{Package: side.pkg, Archive: side.archive, Cache: cfg.Cache, Python: cfg.Python})
		if err != nil {
			return r, "", "", err
		}
		h, err := benchmarks.CommitFiles(store, plumbing.NewBranchReferenceName(side.name), files)
		if err != nil {
			return r, "", "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		ids = append(ids, h.String())
	}
	return repository{dir: dir}, ids[0], ids[1], nil
}

// compare yields the difference of two releases as candidates: the whole, and for each changed test module, where there
// are several, the group that it judges; which files of the whole patch a group needs is found by running it (prove.go).
func compare(ctx context.Context, cfg Config, dir string, use func(c *candidate, reason string) (stop bool, err error)) (repository, error) {
	r, from, to, err := layReleases(ctx, cfg, dir)
	if err != nil {
		return r, err
	}
	name := nameOf(cfg.New)
	versions := strings.TrimPrefix(cfg.Old, name+"==") + "-" + strings.TrimPrefix(cfg.New, name+"==")
	whole := &candidate{id: "release-" + versions, source: cfg.Old + " to " + cfg.New, from: from, to: to}
	reason, err := whole.split(ctx, r)
	if err != nil {
		return r, err
	}
	if whole.message, err = changelog(ctx, r, from, to); err != nil {
		return r, err
	}
	stop, err := use(whole, reason)
	if stop || err != nil || reason != "" || len(whole.modules) < 2 {
		return r, err
	}
	for i, module := range whole.modules {
		g := *whole
		g.id, g.source, g.about = whole.id+"-"+itoa(i+1), whole.source+", "+module, true
		g.modules = []string{module}
		if stop, err := use(&g, ""); stop || err != nil {
			return r, err
		}
	}
	return r, nil
}

var changelogName = regexp.MustCompile(`(?i)^(?:docs?/)?(?:change(?:s|log|_log)?|history|news|releases?|release[-_]notes)(?:\.(?:md|rst|txt))?$`)

// changelog is what the new release's changelog says and the old one's does not; "" where neither has one.
func changelog(ctx context.Context, r repository, from, to string) (string, error) {
	all, err := r.changes(ctx, from, to)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, c := range all {
		if !changelogName.MatchString(c.path) || c.status == 'D' || !c.regular() {
			continue
		}
		before := map[string]bool{}
		if c.status == 'M' {
			text, err := r.text(ctx, c.old)
			if err != nil {
				return "", err
			}
			for l := range strings.Lines(string(text)) {
				before[strings.TrimSpace(l)] = true
			}
		}
		text, err := r.text(ctx, c.new)
		if err != nil {
			return "", err
		}
		if c.status == 'A' || bytes.IndexByte(text, 0) >= 0 {
			continue // a changelog that is new tells of every release
		}
		for l := range strings.Lines(string(text)) {
			if !before[strings.TrimSpace(l)] {
				b.WriteString(l)
			}
		}
	}
	return b.String(), nil
}

// nameOf is the name of NAME==VERSION.
func nameOf(pkg string) string {
	name, _, _ := strings.Cut(pkg, "==")
	return name
}

// filesOf reads a commit's files; ok is false where it has links or submodules, which tasks' repositories have not.
func filesOf(r repository, commit string) (files []benchmarks.File, ok bool, err error) {
	const op = "mine: read tree"
	store, err := git.PlainOpenWithOptions(r.dir, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return nil, false, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	c, err := store.CommitObject(plumbing.NewHash(commit))
	if err != nil {
		return nil, false, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	tree, err := c.Tree()
	if err != nil {
		return nil, false, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	files, ok, err = benchmarks.TreeFiles(tree)
	slices.SortFunc(files, func(a, b benchmarks.File) int { return strings.Compare(a.Path, b.Path) })
	return files, ok, milepost.Wrap(op, milepost.KindInvalid, err)
}

// projectOf names the project of a configuration, for ids of tasks.
func projectOf(cfg Config) string {
	if cfg.Repo == "" {
		return nameOf(cfg.New)
	}
	abs, err := filepath.Abs(cfg.Repo)
	if err != nil {
		return "repository"
	}
	name := strings.TrimSuffix(path.Base(filepath.ToSlash(abs)), ".git")
	if name = unusual.ReplaceAllString(name, "-"); strings.Trim(name, "-.") == "" {
		return "repository"
	}
	return strings.TrimLeft(name, "-._+")
}

var unusual = regexp.MustCompile(`[^A-Za-z0-9._+-]+`)
