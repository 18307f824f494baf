package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost/env"
)

// TestInterpreterBelowTmp: an environment that lies in the host's /tmp is the one that commands get, though they have a
// /tmp of their own; of the rest of the host's they see nothing.
func TestInterpreterBelowTmp(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "milepost-venv-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	venv := filepath.Join(dir, "venv")
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", venv).CombinedOutput(); err != nil {
		t.Skipf("python3 -m venv: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := box(t, Config{Python: filepath.Join(venv, "bin", "python3")}, env.Spec{})
	r := sh(t, s, env.Limits{}, `python3 -c 'import sys; print(sys.prefix)'; cat "$1/secret" 2>/dev/null && echo seen; touch "$1/venv/x" 2>/dev/null && echo written; touch /tmp/own && echo own`, dir)
	if want := venv + "\nown\n"; string(r.Stdout) != want {
		t.Errorf("got %q, want %q; %s", r.Stdout, want, r.Stderr)
	}
}
