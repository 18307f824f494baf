package shadow

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Small disks and cut links for the scenarios of chaos_scenarios_test.go.

func needsMount() string {
	if os.Geteuid() != 0 {
		return "a small disk takes the right to mount"
	}
	return ""
}

// smallDisk mounts a disk of the given size, in MB, below the world's folder.
func (w *chaosWorld) smallDisk(mb int) string {
	w.t.Helper()
	dir := filepath.Join(w.dir, "small")
	must(w.t, os.MkdirAll(dir, 0o755))
	must(w.t, syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mb)))
	w.t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			w.t.Errorf("unmount %s: %v", dir, err)
		}
	})
	w.small = dir
	return dir
}

// fill leaves no room on the small disk until free is called.
func (w *chaosWorld) fill() (free func()) {
	ballast := filepath.Join(w.small, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		w.t.Errorf("ballast: %v", err)
		return func() {}
	}
	block := make([]byte, 64<<10)
	for len(block) > 0 {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	return func() {
		if err := f.Close(); err != nil {
			w.t.Error(err)
		}
		if err := os.Remove(ballast); err != nil {
			w.t.Error(err)
		}
	}
}

func serverOnSmallDisk(w *chaosWorld) {
	w.server.Dir, w.server.MaxStore = filepath.Join(w.smallDisk(48), "nats"), 32<<20
}

func fillServersDisk(ctx context.Context, w *chaosWorld) {
	free := w.fill()
	defer free()
	w.goOn()
	w.await(ctx, "the server takes no more", func() bool { return w.prober.Stats().PublishErrors > 0 || workersSaid("publish result")(w) })
}

// externalServerOnSmallDisk is a server that somebody else runs: nothing starts its JetStream anew when there is room.
func externalServerOnSmallDisk(w *chaosWorld) {
	w.cluster = []*clusterRole{{Name: "external", Dir: filepath.Join(w.smallDisk(48), "nats"), Port: w.server.Port, MaxStore: 32 << 20}}
}

// fillExternalServersDisk makes room again, sees that this alone does not help, and starts the server anew, as the reports of
// the run say one should.
func fillExternalServersDisk(ctx context.Context, w *chaosWorld) {
	free := w.fill()
	w.goOn()
	refused := func() int {
		return w.prober.Stats().PublishErrors + strings.Count(w.workers[0].said()+w.workers[1].said(), "publish result")
	}
	w.await(ctx, "the server takes no more", func() bool { return refused() > 0 })
	w.await(ctx, "the run says what to do", func() bool { return reported(restartAdvice)(w) })
	free()
	before := refused()
	time.Sleep(2 * time.Second)
	w.t.Logf("with room again, %d further tries were refused", refused()-before)
	w.servers[0].end(syscall.SIGTERM)
	w.servers[0] = startRole(w.t, chaosRole{Cluster: w.cluster[0]})
}

func workerOnSmallDisk(w *chaosWorld) { w.roles[0].Dir = filepath.Join(w.smallDisk(16), "w0") }

func fillWorkersDisk(ctx context.Context, w *chaosWorld) {
	free := w.fill()
	defer free()
	w.goOn()
	w.await(ctx, "the worker fails", func() bool { return w.prober.Stats().Retries > 0 })
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
}

func needsNetns() string {
	if os.Geteuid() != 0 {
		return "network namespaces take root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "no ip command (package iproute2)"
	}
	return ""
}

// workerBehindVeth puts worker 0 into a network namespace of its own, with one link to the server.
func workerBehindVeth(w *chaosWorld) {
	slowFirst(w)
	n := os.Getpid() % (256 * 64)
	ns, here, there := fmt.Sprint("mpchaos", n), fmt.Sprint("mpch", n), fmt.Sprint("mpct", n)
	addr := func(i int) string { return fmt.Sprintf("10.200.%d.%d", n/64, 4*(n%64)+i) }
	w.t.Cleanup(func() { ipCommand(w.t, "netns", "del", ns) }) // takes the link with it
	for _, args := range [][]string{
		{"netns", "add", ns}, {"link", "add", here, "type", "veth", "peer", "name", there, "netns", ns},
		{"addr", "add", addr(1) + "/30", "dev", here}, {"link", "set", here, "up"},
		{"-n", ns, "addr", "add", addr(2) + "/30", "dev", there}, {"-n", ns, "link", "set", there, "up"}, {"-n", ns, "link", "set", "lo", "up"},
	} {
		ipCommand(w.t, args...)
	}
	w.server.Host, w.server.Token = addr(1), "sesame"
	w.through[0] = []string{"ip", "netns", "exec", ns}
	w.link = ns + " " + there
}

func ipCommand(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %v: %v: %s", args, err, out)
	}
}

// partition cuts worker 0 off for longer than its lease, in a probe, and heals.
func partition(ctx context.Context, w *chaosWorld) {
	ns, link, _ := strings.Cut(w.link, " ")
	w.stopInProbe(ctx)
	ipCommand(w.t, "-n", ns, "link", "set", link, "down")
	w.workers[0].signal(syscall.SIGCONT) // it ends its probe and cannot say so
	w.await(ctx, "another worker took over", func() bool { return w.prober.Stats().Redelivered > 0 })
	time.Sleep(500 * time.Millisecond)
	ipCommand(w.t, "-n", ns, "link", "set", link, "up")
}
