package local

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/envtest"
)

// ownerFolders begins the name of every owner's folder and control group (package owner).
const ownerFolders = "milepost-"

const ownerEnv = "MILEPOST_TEST_OWNER"

// TestOwner is the other process of TestDeadOwner: it makes sandboxes with running commands and never cleans up.
func TestOwner(t *testing.T) {
	root := os.Getenv(ownerEnv)
	if root == "" {
		t.Skip("only as a child of TestDeadOwner")
	}
	d, err := New(Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(d)
	for range 3 {
		s, err := e.Create(ctx, env.Spec{Base: envtest.MakeBase(t)})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := s.Start(ctx, env.Command{Argv: []string{"/bin/sh", "-c", "setsid sleep 1000 & sleep 1000", root}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}

// TestDeadOwner kills a process that owns sandboxes and checks that its commands die with it and that the next driver
// removes what it left, but nothing of a live owner.
func TestDeadOwner(t *testing.T) {
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOwner$", "-test.v")
	cmd.Env = append(os.Environ(), ownerEnv+"="+root, "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	for sc.Scan() && sc.Text() != "ready" {
		t.Log(sc.Text())
	}
	living, err := New(Config{Root: root, Unconfined: true}) // its sweep must leave the live owner alone
	if err != nil {
		t.Fatal(err)
	}
	homes, err := filepath.Glob(filepath.Join(root, ownerFolders+"*"))
	if err != nil || len(homes) != 2 || len(envtest.Processes(t, root)) == 0 {
		t.Fatalf("before the death: %q %v, processes %v", homes, err, envtest.Processes(t, root))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for deadline := time.Now().Add(10 * time.Second); len(envtest.Processes(t, root)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes %v outlive their owner", envtest.Processes(t, root))
		}
	}
	next, err := New(Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	homes, err = filepath.Glob(filepath.Join(root, ownerFolders+"*"))
	if err != nil || len(homes) != 2 {
		t.Errorf("after the sweep: %q %v, want those of the two live drivers", homes, err)
	}
	for _, d := range []*Driver{living, next} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	assertNothingLeft(t, root)
	left, err := filepath.Glob("/sys/fs/cgroup/*/" + ownerFolders + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range left {
		if strings.HasPrefix(filepath.Base(g), fmt.Sprintf("%s%d-", ownerFolders, cmd.Process.Pid)) {
			t.Errorf("control group %s is left", g)
		}
	}
}
