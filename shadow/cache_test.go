package shadow

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/milepost-rl/milepost"
)

func cached(key string) cacheEntry {
	return cacheEntry{V: fileVersion, Key: key, Tree: treeID(1), Report: milepost.TestReport{milepost.Passed}}
}

func TestCacheFileToleratesATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	f, entries, bad, err := openCache(path)
	must(t, err)
	if len(entries) != 0 || bad != 0 {
		t.Fatalf("%v %d", entries, bad)
	}
	must(t, f.add(cached("k1")))
	must(t, f.add(cached("k2")))
	must(t, f.close())
	whole, err := os.ReadFile(path)
	must(t, err)
	for cut := len(whole); cut >= 0; cut-- { // whatever point the process died at
		must(t, os.WriteFile(path, whole[:cut], 0o644))
		f, entries, bad, err := openCache(path)
		must(t, err)
		if want := strings.Count(string(whole[:cut]), "\n"); len(entries) != want || bad != 0 {
			t.Fatalf("cut at %d: %d entries, %d bad, want %d", cut, len(entries), bad, want)
		}
		must(t, f.add(cached("k3")))
		must(t, f.close())
		_, entries, bad, err = openCache(path)
		must(t, err)
		if bad != 0 || entries[len(entries)-1].Key != "k3" {
			t.Fatalf("cut at %d, then appended: %v, %d bad", cut, entries, bad)
		}
	}
	must(t, os.WriteFile(path, []byte("{\"v\":1}\n"+string(whole)+"not json\n"), 0o644))
	if _, entries, bad, err = openCache(path); err != nil || len(entries) != 2 || bad != 2 {
		t.Errorf("%d entries, %d bad, %v", len(entries), bad, err)
	}
	must(t, os.WriteFile(path, []byte(strings.Replace(string(whole), `"report":"P"`, `"report":"F"`, 1)), 0o644))
	if _, entries, bad, err = openCache(path); err != nil || len(entries) != 1 || bad != 1 {
		t.Errorf("a changed letter: %d entries, %d bad, %v", len(entries), bad, err)
	}
}

// fullDisk takes room bytes, then fails as a full disk does, with a part of the line written.
type fullDisk struct {
	data []byte
	room int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.data, d.room = append(d.data, p[:n]...), d.room-n
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}
func (d *fullDisk) Truncate(n int64) error {
	d.room += len(d.data) - int(n)
	d.data = d.data[:n]
	return nil
}
func (d *fullDisk) Close() error { return nil }

func TestFullDiskIsReportedAndMadeGood(t *testing.T) {
	r := newRig(t, false)
	var reported []error
	p := r.newProber(WithErrors(func(err error) { reported = append(reported, err) }))
	disk := &fullDisk{room: 10}
	p.mu.Lock()
	p.cache = &cacheFile{lineFile{w: disk}}
	p.mu.Unlock()
	r.startWorker(&fakeRunner{})
	for i := range 2 {
		if got := one(t, p, r.step("e1", i, i+1)); !got.Trusted {
			t.Fatalf("probe %+v", got)
		}
	}
	p.mu.Lock()
	if len(disk.data) != 0 || p.book.stats.CacheErrors != 2 || len(p.cache.unsaved) != 2 {
		t.Errorf("file %q, stats %+v", disk.data, p.book.stats)
	}
	disk.room = 1 << 20
	p.mu.Unlock()
	one(t, p, r.step("e1", 2, 3))
	must(t, p.Close())
	entries, size, bad, err := readCache(strings.NewReader(string(disk.data)))
	if err != nil || len(entries) != 3 || bad != 0 || int(size) != len(disk.data) {
		t.Errorf("%d entries, %d bad, %v", len(entries), bad, err)
	}
	if len(reported) != 2 || !errors.Is(reported[0], syscall.ENOSPC) || milepost.KindOf(reported[0]) != milepost.KindUnavailable {
		t.Errorf("reported %v", reported)
	}
}

func TestCacheOnAnUnwritableFolder(t *testing.T) {
	r := newRig(t, false)
	r.prober.CacheFile = filepath.Join(t.TempDir(), "missing", "cache")
	if _, err := NewProber(t.Context(), r.connect(), r.prober, r.blobs); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("error %v", err)
	}
}
