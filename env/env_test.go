package env_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/memory"
)

func TestIsCache(t *testing.T) {
	for p, want := range map[string]bool{
		"a/__pycache__": true, "a/__pycache__/x.py": true, "x.pyc": true, ".pytest_cache/README.md": true, ".mypy_cache": true,
		"sub/.ruff_cache/x": true, ".coverage": true, "x.py": false, "pycache/x": false, "x.pyc/y.py": false, "a.egg-info/PKG-INFO": false,
		".cache/x": false, ".git/HEAD": false, "": false, ".": false,
	} {
		if env.IsCache(p) != want {
			t.Errorf("IsCache(%q) is %v", p, !want)
		}
	}
}

// broken is a driver whose Create fails in a way of the test's choice.
type broken struct{ err error }

func (b broken) Create(context.Context, *driver.Spec) (driver.Sandbox, error) { return nil, b.err }
func (b broken) Close() error                                                 { return nil }

func TestKinds(t *testing.T) {
	for _, c := range []struct {
		err  error
		want milepost.Kind
	}{
		{errors.New("no idea"), milepost.KindUnavailable},
		{io.ErrUnexpectedEOF, milepost.KindUnavailable},
		{fmt.Errorf("x: %w", fs.ErrNotExist), milepost.KindNotFound},
		{fmt.Errorf("x: %w", driver.ErrEscapes), milepost.KindDenied},
		{fmt.Errorf("x: %w", driver.ErrFull), milepost.KindLimit},
		{fmt.Errorf("x: %w", driver.ErrTooLarge), milepost.KindLimit},
		{fmt.Errorf("x: %w", driver.ErrInvalid), milepost.KindInvalid},
		{fmt.Errorf("x: %w", context.Canceled), milepost.KindCanceled},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), milepost.KindCanceled},
		{milepost.E("driver: x", milepost.KindCorrupt, "bad"), milepost.KindCorrupt},
	} {
		_, err := env.New(broken{c.err}).Create(context.Background(), env.Spec{})
		if milepost.KindOf(err) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%v: kind %q, want %q", c.err, milepost.KindOf(err), c.want)
		}
	}
}

func TestLimits(t *testing.T) {
	var got driver.Limits
	d := memory.New(memory.WithProgram(func(_ context.Context, c *memory.Call) int { got = c.Limits; return 0 }))
	e := env.New(d, env.WithLimits(env.Limits{Procs: 7, Memory: 70}))
	s, err := e.Create(context.Background(), env.Spec{Limits: env.Limits{Memory: 80, Output: 9}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(context.Background(), env.Command{Argv: []string{"x"}, Limits: env.Limits{Output: 10}}); err != nil {
		t.Fatal(err)
	}
	want := env.DefaultLimits
	want.Procs, want.Memory, want.Output = 7, 80, 10
	if got != want {
		t.Errorf("limits %+v, want %+v", got, want)
	}
	p, err := s.Start(context.Background(), env.Command{Argv: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil || got.Wall != 0 {
		t.Errorf("Start has a wall time of %v, %v", got.Wall, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// A program for the example: it answers "make" by writing a file.
func builder(_ context.Context, c *memory.Call) int {
	fmt.Fprintln(c.Stdout, "building", strings.Join(c.Argv[1:], " "))
	if err := c.Files.WriteFile("out.txt", []byte("built"), 0); err != nil {
		return 1
	}
	return 0
}

func Example() {
	ctx := context.Background()
	e := env.New(memory.New(memory.WithProgram(builder))) // local.New(local.Config{Root: ...}) for the real thing
	defer e.Close()
	s, err := e.Create(ctx, env.Spec{Name: "example"}) // Base: the directory of a repository
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close(ctx)
	r, err := s.Exec(ctx, env.Command{Argv: []string{"make", "all"}, Limits: env.Limits{Wall: time.Minute}})
	if err != nil {
		fmt.Println(err) // the infrastructure failed; the attempt does not count
		return
	}
	fmt.Printf("exit %d: %s", r.ExitCode, r.Stdout)
	changes, err := s.Changes(ctx)
	for _, c := range changes {
		fmt.Printf("%o %s %s\n", c.Mode, c.Path, c.Data)
	}
	_, _, err = s.ReadFile(ctx, "../../etc/passwd")
	fmt.Println(milepost.KindOf(err))
	// Output:
	// exit 0: building all
	// 100644 out.txt built
	// invalid
}
