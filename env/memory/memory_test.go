package memory

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/envtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verbs is the suite's command set as a Program.
func verbs(ctx context.Context, c *Call) int {
	arg := func(i int) string { return c.Argv[i+1] }
	switch c.Argv[0] {
	case "echo":
		fmt.Fprintln(c.Stdout, arg(0))
	case "fail":
		fmt.Fprint(c.Stderr, arg(1))
		code, _ := strconv.Atoi(arg(0))
		return code
	case "cat":
		io.Copy(c.Stdout, c.Stdin)
	case "read":
		data, _, err := c.Files.ReadFile(path.Join(c.Dir, arg(0)), 1<<20)
		if err != nil {
			return 1
		}
		c.Stdout.Write(data)
	case "write":
		if c.Files.WriteFile(path.Join(c.Dir, arg(0)), []byte(arg(1)), 0) != nil {
			return 1
		}
	case "env":
		fmt.Fprint(c.Stdout, c.Env[arg(0)])
	case "spam":
		n, _ := strconv.Atoi(arg(0))
		fmt.Fprint(c.Stdout, strings.Repeat("x", n))
	case "hang":
		<-ctx.Done()
	case "serve":
		for sc := bufio.NewScanner(c.Stdin); sc.Scan(); {
			fmt.Fprintf(c.Stdout, "got %s\n", sc.Text())
		}
		return 5
	default:
		return 127
	}
	return 0
}

func TestConformance(t *testing.T) {
	envtest.Run(t, envtest.Harness{
		New:     func(*testing.T) driver.Driver { return New(WithProgram(verbs)) },
		Argv:    func(verb string, args ...string) []string { return append([]string{verb}, args...) },
		Missing: true,
	})
}

func TestNothingLeft(t *testing.T) {
	envtest.Left(t, envtest.Owned{
		New:  func(string) (driver.Driver, error) { return New(WithProgram(verbs)), nil },
		Argv: func(verb string, args ...string) []string { return append([]string{verb}, args...) },
	})
}

// What only this driver can do: fail on demand.
func TestFailures(t *testing.T) {
	ctx := context.Background()
	fail := fmt.Errorf("no room")
	e := env.New(New(WithCreate(func(*driver.Spec) error { return fail })))
	if _, err := e.Create(ctx, env.Spec{}); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("Create: %v", err)
	}
	e = env.New(New(WithProgram(func(_ context.Context, c *Call) int {
		if c.Argv[0] == "broken" {
			c.Fail = fail
		}
		c.OutOfMemory = true
		return 9
	})))
	s, err := e.Create(ctx, env.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(ctx, env.Command{Argv: []string{"broken"}}); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("Exec: %v", err)
	}
	if r, err := s.Exec(ctx, env.Command{Argv: []string{"hungry"}}); err != nil || !r.OutOfMemory || r.ExitCode != 9 {
		t.Errorf("Exec: %+v %v", r, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
