package local

import (
	"context"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/env"
)

func TestSmoke(t *testing.T) {
	d, err := New(Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", d.Report())
	e := env.New(d)
	defer e.Close()
	ctx := context.Background()
	t0 := time.Now()
	s, err := e.Create(ctx, env.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("create", time.Since(t0))
	for _, sh := range []string{"echo hi; id; pwd; touch x; ls -la; env; exit 3", "nope 1 2", "python3 -c 'import sys;print(sys.version,sys.prefix)'", "mount; cat /proc/self/status | grep -E 'Cap|NoNewP'; unshare -Ur id; ls /; git --version; awk 'BEGIN{print 1}'", "true"} {
		t0 = time.Now()
		r, err := s.Exec(ctx, env.Command{Argv: []string{"/bin/sh", "-c", sh}})
		t.Logf("%v %v %d\n%s\n%s", time.Since(t0), err, r.ExitCode, r.Stdout, r.Stderr)
	}
	r, err := s.Exec(ctx, env.Command{Argv: []string{"nope"}})
	t.Logf("%v %d\n%s\n%s", err, r.ExitCode, r.Stdout, r.Stderr)
	t0 = time.Now()
	t.Log(s.Changes(ctx))
	t.Log(time.Since(t0))
	t0 = time.Now()
	t.Log(s.Close(ctx))
	t.Log(time.Since(t0))
}
