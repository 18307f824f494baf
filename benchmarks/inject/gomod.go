package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
	"github.com/milepost-rl/milepost/env/testrun"
)

// Bounds of a module with what it imports, in bytes.
const (
	maxMember = 32 << 20
	maxTotal  = 512 << 20
)

// modulePin is a Go module at a version, as `go get` takes it.
var modulePin = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._~/-]*@v[0-9][A-Za-z0-9.+-]*$`)

// goProgram runs the go command outside the sandbox.
func goProgram(ctx context.Context, cfg Config, dir string, vars []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, cfg.Go, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append([]string{"GOFLAGS=-mod=mod", "GOWORK=off", "GOTOOLCHAIN=local"}, vars...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, milepost.Wrap("inject: go "+args[0], milepost.KindCanceled, ctx.Err())
	case err != nil:
		return out, milepost.E("inject: go "+args[0], milepost.KindUnavailable, "%s: %w: %s", strings.Join(args, " "), err, pypkg.LastLines(append(out, stderr.Bytes()...), 5))
	}
	return out, nil
}

// fetchModule returns the files of a Go module, and what it imports below vendor/, so that no sandbox needs a network. It
// also fills the cache of compiled packages with what the standard library has of them.
func fetchModule(ctx context.Context, cfg Config) ([]benchmarks.File, error) {
	const op = "inject: download"
	work, err := os.MkdirTemp("", "milepost-module-")
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(work)
	out, err := goProgram(ctx, cfg, work, nil, "mod", "download", "-json", cfg.Package)
	var found struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &found); err == nil && jsonErr != nil {
		err = jsonErr
	}
	if err != nil || found.Error != "" {
		return nil, milepost.E(op, milepost.KindUnavailable, "%s: %s: %w", cfg.Package, found.Error, err)
	}
	tree := filepath.Join(work, "tree")
	if err := os.CopyFS(tree, os.DirFS(found.Dir)); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if _, err := os.Stat(filepath.Join(tree, "go.mod")); err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s has no go.mod", cfg.Package)
	}
	mod, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if bytes.Contains(mod, []byte("require")) {
		if _, err := goProgram(ctx, cfg, tree, nil, "mod", "vendor"); err != nil {
			return nil, err
		}
	}
	if cfg.GoCache != "" {
		vars := []string{"GOCACHE=" + cfg.GoCache, "GOFLAGS=" + goFlags(tree), "CGO_ENABLED=0"} // as in the sandbox, or nothing of it fits
		if _, err := goProgram(ctx, cfg, tree, vars, "test", "-count=1", "-run=^$", "./..."); err != nil {
			return nil, err
		}
	}
	return readTree(tree)
}

// goFlags are the flags of a module: its own vendor folder, where it has one, and nothing else.
func goFlags(tree string) string {
	if _, err := os.Stat(filepath.Join(tree, "vendor")); err == nil {
		return "-mod=vendor -buildvcs=false"
	}
	return "-mod=readonly -buildvcs=false"
}

// readTree reads the regular files below a folder.
func readTree(root string) ([]benchmarks.File, error) {
	var files []benchmarks.File
	total := int64(0)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if total += int64(len(data)); total > maxTotal || len(data) > maxMember {
			return milepost.E("inject: read module", milepost.KindLimit, "%s takes it beyond %d bytes a file, %d in all", p, maxMember, maxTotal)
		}
		rel, err := filepath.Rel(root, p)
		files = append(files, benchmarks.File{Path: filepath.ToSlash(rel), Data: data})
		return err
	})
	return files, milepost.Wrap("inject: read module", milepost.KindUnavailable, err)
}

// goSources picks the Go files that faults go into.
func goSources(cfg Config, files []benchmarks.File) (map[string]string, error) {
	out := map[string]string{}
	for _, f := range files {
		asked := slices.Contains(cfg.Sources, f.Path)
		found := len(cfg.Sources) == 0 && strings.HasSuffix(f.Path, ".go") && !strings.HasSuffix(f.Path, "_test.go") && !strings.HasPrefix(f.Path, "vendor/") &&
			!strings.Contains("/"+path.Dir(f.Path)+"/", "/testdata/") && !bytes.Contains(f.Data[:min(len(f.Data), 2000)], []byte("\n//go:build")) &&
			!bytes.Contains(f.Data[:min(len(f.Data), 2000)], []byte("Code generated "))
		if asked || found {
			out[f.Path] = string(f.Data)
		}
	}
	return out, cfg.checkSources(out, "Go files without tests")
}

// goScript runs the tests on top of the compiled packages that the machine shows in the folder $0, if it shows any: the go
// command must be able to add to its cache, so it gets one of links to them.
const goScript = `export GOCACHE=/tmp/go-build; [ -d "$0" ] && cp -rs "$0" "$GOCACHE"; exec go test -json -count=1 "$@"`

// goTestCommand runs the tests of a module without a network. The toolchain is looked for where the go program of the maker
// has it and where Go's own images have it.
func goTestCommand(ctx context.Context, cfg Config, files []benchmarks.File) milepost.TestCommand {
	flags := "-mod=readonly -buildvcs=false"
	if slices.ContainsFunc(files, func(f benchmarks.File) bool { return f.Path == "vendor/modules.txt" }) {
		flags = "-mod=vendor -buildvcs=false"
	}
	packages := []string{"./..."}
	if len(cfg.Tests) > 0 {
		packages = nil
		for _, t := range cfg.Tests {
			packages = append(packages, "./"+path.Clean(t))
		}
	}
	search := "/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin"
	if root, err := goProgram(ctx, cfg, "", nil, "env", "GOROOT"); err == nil {
		if dir := filepath.Join(strings.TrimSpace(string(root)), "bin"); dir != "/usr/local/go/bin" {
			search = dir + ":" + search
		}
	}
	return milepost.TestCommand{Argv: append([]string{"sh", "-c", goScript, orNone(cfg.GoCache)}, packages...), Format: "gotest", Timeout: cfg.Timeout,
		Env: map[string]string{"PATH": search, "GOFLAGS": flags, "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "HOME": "/tmp"}}
}

func orNone(dir string) string {
	if dir == "" {
		return "/nonexistent"
	}
	return dir
}

// skipGoTest adds a test function to those that are skipped.
func skipGoTest(argv []string, name string) []string {
	argv = slices.Clone(argv)
	for i, a := range argv {
		if list, ok := strings.CutPrefix(a, "-skip=^("); ok {
			if !slices.Contains(strings.Split(strings.TrimSuffix(list, ")$"), "|"), name) {
				argv[i] = "-skip=^(" + strings.TrimSuffix(list, ")$") + "|" + name + ")$"
			}
			return argv
		}
	}
	return slices.Insert(argv, 4, "-skip=^("+name+")$")
}

// topTest is the name of the test function of an id.
func topTest(id string) string {
	_, name, _ := strings.Cut(id, "::")
	name, _, _ = strings.Cut(name, "/")
	return name
}

// settleGo finds the tests that pass in each of n runs, as pypkg.Settle does. A test that does not is skipped with all
// that its function does.
func settleGo(t *milepost.Task, n int, run func() (testrun.Outcome, error)) (time.Duration, error) {
	t.Tests = nil
	out, err := run()
	if err != nil {
		return 0, err
	}
	t.Tests = out.Extra // nothing is listed yet
	for range n {
		if out, err = run(); err != nil {
			return 0, err
		}
		bad := map[string]bool{}
		for i, id := range t.Tests {
			if out.Report[i] != milepost.Passed {
				bad[topTest(id)] = true
			}
		}
		for _, id := range out.Extra { // named anew each time
			bad[topTest(id)] = true
		}
		for _, name := range slices.Sorted(maps.Keys(bad)) {
			t.Test.Argv = skipGoTest(t.Test.Argv, name)
		}
		t.Tests = slices.DeleteFunc(slices.Clone(t.Tests), func(id string) bool { return bad[topTest(id)] })
		if len(t.Tests) == 0 {
			return 0, milepost.E("inject: find tests", milepost.KindInvalid, "no test passes each time: %s", pypkg.LastLines(out.Log, 3))
		}
	}
	return out.Ran, nil
}

// protectedGo are the tests and what decides how they are built.
func protectedGo(files []benchmarks.File) []string {
	out := []string{"go.mod", "go.sum", "go.work", "vendor/"}
	for _, f := range files {
		if strings.HasSuffix(f.Path, "_test.go") && !strings.HasPrefix(f.Path, "vendor/") {
			out = append(out, f.Path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// notBuilt reports whether a run says that a package did not compile.
func notBuilt(log []byte) bool {
	return bytes.Contains(log, []byte(`"Action":"build-fail"`)) || bytes.Contains(log, []byte(`"FailedBuild"`))
}

// goReasons reads the first message of each failing test out of its output events.
func goReasons(fails []string, log []byte) map[string]string {
	out := map[string]string{}
	for line := range bytes.Lines(log) {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(line, &e) != nil || e.Action != "output" {
			continue
		}
		id := e.Package + "::" + e.Test
		text := strings.TrimSpace(e.Output)
		if out[id] == "" && slices.Contains(fails, id) && (strings.Contains(text, "_test.go:") || strings.HasPrefix(text, "panic: ")) {
			out[id] = shorten(text)
		}
	}
	return out
}
