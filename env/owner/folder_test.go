package owner

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFolder(t *testing.T) {
	root := t.TempDir()
	home, err := TakeFolder(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"notes", prefix + "x", prefix + "1-2-y"} { // not an owner's; the last was never alive
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var swept []string
	if err := Sweep(root, func(name string) { swept = append(swept, name) }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{filepath.Base(home): true, "notes": true, prefix + "x": true, prefix + "1-2-y": false} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s: %v, kept should be %v", name, err, want)
		}
	}
	if len(swept) != 1 || swept[0] != prefix+"1-2-y" || !Dead(swept[0]) || Dead(filepath.Base(home)) {
		t.Errorf("swept %q", swept)
	}
	if err := RemoveFolder(home); err != nil {
		t.Error(err)
	}
}

// taken is an owner's folder whose lease says something else than it did.
func taken(t *testing.T, root, lease string) string {
	t.Helper()
	home, err := TakeFolder(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, leaseFile), []byte(lease), 0o600); err != nil {
		t.Fatal(err)
	}
	return home
}

// end makes the owner of a folder one that was killed: its lock is gone, and all else is there.
func end(t *testing.T, home string) {
	t.Helper()
	f, _ := held.LoadAndDelete(home)
	if err := f.(*os.File).Close(); err != nil {
		t.Fatal(err)
	}
}

func sweep(t *testing.T, root string) {
	t.Helper()
	if err := Sweep(root, func(string) {}); err != nil {
		t.Error(err)
	}
}

// TestLock: who lives is told by the lock, whatever the lease says of a process that nobody here can see.
func TestLock(t *testing.T) {
	for name, lease := range map[string]string{
		"on another machine":         `{"pid":1,"start":"2","boot":"another"}`,
		"in another namespace":       `{"pid":4194304,"start":"2","boot":"` + Boot() + `"}`,
		"lost when the machine fell": "",
		"half written":               `{"pid":41`,
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			home := taken(t, root, lease)
			sweep(t, root)
			if _, err := os.Stat(home); err != nil {
				t.Fatalf("the folder of a live owner is gone: %v", err)
			}
			// The name is of this process, which lives: of a dead one it would not be.
			gone := filepath.Join(root, prefix+"4194304-2-1")
			if err := os.Rename(home, gone); err != nil {
				t.Fatal(err)
			}
			end(t, home)
			sweep(t, root)
			if _, err := os.Stat(gone); err == nil {
				t.Error("the folder of a dead owner is still there")
			}
		})
	}
}

// TestSweepsAtOnce: several processes may start in one folder at once after one was killed there.
func TestSweepsAtOnce(t *testing.T) {
	for range 10 {
		root := t.TempDir()
		home := taken(t, root, `{"pid":1,"start":"2","boot":"another"}`)
		for _, name := range []string{"a", "b", "c"} {
			p := filepath.Join(home, name)
			if err := os.Mkdir(p, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("milepost", p, "tmpfs", 0, "size=4096"); err != nil {
				t.Skipf("mount: %v", err)
			}
		}
		end(t, home)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { sweep(t, root) })
		}
		wg.Wait()
		if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
			t.Fatalf("left: %v, %v", left, err)
		}
	}
}

// TestUnnamed: a process that was killed before its folder had a name leaves one that is removed when it is old.
func TestUnnamed(t *testing.T) {
	root := t.TempDir()
	for name, age := range map[string]time.Duration{"old": 2 * time.Hour, "young": 0} {
		p := filepath.Join(root, unnamed+name)
		if err := os.Mkdir(p, 0o700); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(p, when, when); err != nil {
			t.Fatal(err)
		}
	}
	sweep(t, root)
	if left, err := os.ReadDir(root); err != nil || len(left) != 1 || left[0].Name() != unnamed+"young" {
		t.Errorf("left: %v, %v", left, err)
	}
}
