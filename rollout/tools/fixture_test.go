package tools

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// bench is a workspace in memory with the tools over it.
type bench struct {
	t       *testing.T
	box     *env.Sandbox
	session *Session
	set     *Set
	base    map[string]bool
	program memory.Program
}

// newBench makes a workspace of the given files; change may alter the configuration.
func newBench(t *testing.T, files map[string]string, change func(*Config)) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, base: map[string]bool{}}
	for name, text := range files {
		b.base[name] = true
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	e := env.New(memory.New(memory.WithProgram(func(ctx context.Context, c *memory.Call) int {
		if b.program == nil {
			return 127
		}
		return b.program(ctx, c)
	})))
	t.Cleanup(func() { e.Close() })
	var err error
	if b.box, err = e.Create(context.Background(), env.Spec{Base: dir}); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	if b.set, err = New(KitMilepost, cfg); err != nil {
		t.Fatal(err)
	}
	b.session = &Session{Workspace: b.box, Repo: b}
	return b
}

// The bench is its own Repository: the files as they are, without caches.

func (b *bench) Index() repo.Index {
	index := repo.Index{}
	err := b.box.Walk(context.Background(), ".", func(f env.FileInfo) error {
		switch {
		case f.Mode.IsDir() || repo.IsCache(f.Path):
		case f.Mode&fs.ModeSymlink != 0:
			index[f.Path] = repo.Entry{Mode: repo.ModeSymlink, Size: f.Size}
		default:
			index[f.Path] = repo.Entry{Mode: repo.ModeFile, Size: f.Size}
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return index
}

func (b *bench) InBase(path string) bool { return b.base[path] }

func (b *bench) Delta() []milepost.TreeChange {
	changes, err := b.box.Changes(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	var out []milepost.TreeChange
	for _, c := range changes {
		out = append(out, milepost.TreeChange{Path: c.Path, Mode: c.Mode, Deleted: c.Deleted})
	}
	return out
}

func (b *bench) Diff(_ context.Context, path string) (string, error) { return "diff of " + path, nil }

// run makes one call; the arguments must meet the schema.
func (b *bench) run(tool, args string) Result {
	b.t.Helper()
	call := toolcall.Call{Name: tool, Arguments: json.RawMessage(args)}
	if why := b.set.Check(call); why != "" {
		b.t.Fatalf("%s %s: %s", tool, args, why)
	}
	r, err := b.set.Run(context.Background(), b.session, call)
	if err != nil {
		b.t.Fatalf("%s %s: %v", tool, args, err)
	}
	return r
}

// says makes a call and wants exactly this observation.
func (b *bench) says(tool, args, want string) Result {
	b.t.Helper()
	r := b.run(tool, args)
	if r.Text != want {
		b.t.Errorf("%s %s\ngot  %q\nwant %q", tool, args, r.Text, want)
	}
	return r
}

// file wants exactly this content; "" wants no such file.
func (b *bench) file(path, want string) {
	b.t.Helper()
	data, _, err := b.box.ReadFile(context.Background(), path)
	if milepost.KindOf(err) == milepost.KindNotFound && want == "" {
		return
	}
	if err != nil || string(data) != want {
		b.t.Errorf("%s holds %q, want %q (%v)", path, data, want, err)
	}
}

func quote(s string) string {
	out, _ := json.Marshal(s)
	return string(out)
}
