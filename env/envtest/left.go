package envtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
)

// Owned is what the test of things left behind needs to know of a driver.
type Owned struct {
	// New makes a driver of this process in a process that may be killed; it must not use t to clean up. root is a folder for
	// what it keeps on disk.
	New func(root string) (driver.Driver, error)
	// Argv turns verbs into commands; nil: [ShellArgv], and then scripts are run that hide processes and fill pipes.
	Argv func(verb string, args ...string) []string
	// Count counts what of this driver and its like is on the machine: containers, volumes, mounts, control groups, whatever
	// it makes, by name. It is compared with what there was before.
	Count func(t testing.TB, root string) map[string]int
	// Killed is the name of a test that calls [RunOwner]; owners in processes of their own are then killed, too. "": none.
	Killed string
}

const (
	episodesEnv = "MILEPOST_EPISODES"           // how many episodes [Left] runs
	ownerEnv    = "MILEPOST_TEST_ENVTEST_OWNER" // the root of an owner that is to be killed
)

// Left runs episodes with random cancellation in one driver while owners in processes of their own are killed, closes
// everything, and wants that nothing is left: no process, goroutine, temporary file, or anything that Count knows. It runs 100 of
// them, 20 with -short; MILEPOST_EPISODES sets another number.
func Left(t *testing.T, o Owned) {
	n := 100
	if s := os.Getenv(episodesEnv); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		n = 20
	}
	root, err := os.MkdirTemp("/var/tmp", "milepost-left-")
	must(t, "temporary folder", err)
	defer func() { must(t, "remove", os.RemoveAll(root)) }()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	base := MakeBase(t)
	goroutines, before := runtime.NumGoroutine(), o.count(t, root)
	d, err := o.New(root)
	must(t, "New", err)
	e := env.New(d)
	done, killed := make(chan struct{}), 0
	go func() {
		defer close(done)
		if o.Killed != "" {
			killed = max(2, n/25)
			o.killOwners(t, root, killed)
		}
	}()
	cancelled := o.episodes(t, e, base, n, 7)
	<-done
	if open := e.Open(); open != 0 {
		t.Errorf("%d sandboxes are open", open)
	}
	must(t, "Env.Close", e.Close())
	last, err := o.New(root) // collects what the dead owners left
	must(t, "New", err)
	must(t, "Close", last.Close())
	o.wantCount(t, root, before)
	WantGoroutines(t, goroutines)
	wantEmpty(t, temp, root)
	t.Logf("%d episodes, %d of them cancelled; %d owners killed", n, cancelled, killed)
}

// RunOwner is what the test named in Owned.Killed does: in a process of its own it runs episodes until it is killed.
func RunOwner(t *testing.T, o Owned) {
	root := os.Getenv(ownerEnv)
	if root == "" {
		t.Skip("only as a process of its own, to be killed")
	}
	d, err := o.New(root)
	must(t, "New", err)
	fmt.Println("ready")
	base := MakeBase(t)
	for seed := uint64(0); ; seed++ {
		o.episodes(t, env.New(d), base, 100, seed)
	}
}

func (o Owned) argv(rnd *rand.Rand) []string {
	if o.Argv != nil {
		return [][]string{o.Argv("echo", "x"), o.Argv("hang"), o.Argv("spam", "100000")}[rnd.IntN(3)]
	}
	script := []string{"sleep 0.05", "setsid sleep 1000 & sleep 0.05", "sleep 5", "head -c 100000 /dev/zero"}[rnd.IntN(4)]
	return []string{"/bin/sh", "-c", script}
}

// episode works in a sandbox of its own until it is done or cancelled.
func (o Owned) episode(ctx context.Context, e *env.Env, base string, rnd *rand.Rand) (err error) {
	s, err := e.Create(ctx, env.Spec{Name: "episode", Base: base})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	for i := range 3 {
		if err := s.WriteFile(ctx, fmt.Sprintf("f%d", i), []byte("x"), 0); err != nil {
			return err
		}
		if _, err := s.Exec(ctx, env.Command{Argv: o.argv(rnd), Limits: env.Limits{Wall: time.Second}}); err != nil {
			return err
		}
	}
	if _, err := s.Changes(ctx); err != nil {
		return err
	}
	argv := ShellArgv
	if o.Argv != nil {
		argv = o.Argv
	}
	if rnd.IntN(4) == 0 {
		_, err = s.Start(ctx, env.Command{Argv: argv("hang")}) // Close ends it
	}
	return err
}

// episodes runs n of them, four at a time, half of them cancelled at a random moment, and returns how many ended so.
func (o Owned) episodes(t testing.TB, e *env.Env, base string, n int, seed uint64) int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	cancelled := 0
	slots := make(chan struct{}, 4)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			c, cancel := context.WithCancel(ctx)
			defer cancel()
			if rnd.IntN(2) == 0 {
				timer := time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Millisecond, cancel)
				defer timer.Stop()
			}
			err := o.episode(c, e, base, rnd)
			if milepost.KindOf(err) == milepost.KindCanceled {
				mu.Lock()
				defer mu.Unlock()
				cancelled++
			} else if err != nil {
				t.Errorf("episode %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	return cancelled
}

// killOwners runs processes that own sandboxes and kills each at a random moment.
func (o Owned) killOwners(t *testing.T, root string, n int) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range n {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+o.Killed+"$", "-test.timeout", "5m")
		cmd.Env = append(os.Environ(), ownerEnv+"="+root)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Error(err)
			return
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Errorf("the owner said %q %v", line, err)
		}
		time.Sleep(time.Duration(500+rnd.IntN(3000)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// count adds to Count what every driver could leave.
func (o Owned) count(t testing.TB, root string) map[string]int {
	out := map[string]int{"processes": len(Processes(t, root)), "mounts below the folder": 0, "control groups": 0, "owners' folders": 0}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, "mounts", err)
	out["mounts below the folder"] = strings.Count(string(mounts), root)
	groups, err := filepath.Glob("/sys/fs/cgroup/*/milepost-*") // version 1; those of version 2 are found one level up
	must(t, "control groups", err)
	more, err := filepath.Glob("/sys/fs/cgroup/milepost-*")
	must(t, "control groups", err)
	for _, g := range append(groups, more...) {
		if strings.HasPrefix(filepath.Base(g), fmt.Sprintf("milepost-%d-", os.Getpid())) {
			out["control groups"]++
		}
	}
	folders, err := filepath.Glob(filepath.Join(root, "milepost-*"))
	must(t, "folders", err)
	out["owners' folders"] = len(folders)
	if o.Count != nil {
		for k, v := range o.Count(t, root) {
			out[k] = v
		}
	}
	return out
}

// wantCount waits a moment for what ends by itself, then wants no more of anything than there was.
func (o Owned) wantCount(t testing.TB, root string, before map[string]int) {
	t.Helper()
	var more []string
	for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(200 * time.Millisecond) {
		more = nil
		for what, n := range o.count(t, root) {
			if n > before[what] {
				more = append(more, fmt.Sprintf("%s: %d, before %d", what, n, before[what]))
			}
		}
		if len(more) == 0 {
			return
		}
	}
	t.Errorf("left behind: %s", strings.Join(more, "; "))
}

// WantGoroutines waits a moment for those that are about to end, then wants no more than there were.
func WantGoroutines(t testing.TB, before int) {
	t.Helper()
	var now int
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		if now = runtime.NumGoroutine(); now <= before {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d goroutines, before %d:\n%s", now, before, buf[:runtime.Stack(buf, true)])
}

// wantEmpty wants that nothing is in the temporary folders but what the killed tests themselves had.
func wantEmpty(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		left, err := os.ReadDir(dir)
		must(t, "ReadDir", err)
		for _, e := range left {
			if !strings.HasPrefix(e.Name(), "Test") && e.Name() != "images" {
				t.Errorf("left in a temporary folder: %s", e.Name())
			}
		}
	}
}

// Processes returns the ids of this machine's processes whose command line holds marker.
func Processes(t testing.TB, marker string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, "processes", err)
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Contains(line, []byte(marker)) {
			out = append(out, pid)
		}
	}
	return out
}
