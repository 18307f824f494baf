package dataset

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// fakeHub speaks the part of the hub's API that is used. Files in lfs are told by their SHA-256, others as git blobs.
type fakeHub struct {
	t       *testing.T
	files   map[string][]byte
	lfs     map[string]bool
	perPage int

	mu       sync.Mutex
	requests []string          // paths with their Range
	breakAt  map[string][]int  // path: after so many bytes the connection breaks, once each
	replace  map[string][]byte // path: what is sent in place of the file
	status   map[string][]int  // path: answers to give first
	noRange  bool
	storage  *httptest.Server // where files in lfs are redirected to; nil = served here
}

const hubCommit = "89abcdef0123456789abcdef0123456789abcdef"

func (h *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, r.URL.Path+" "+r.Header.Get("Range"))
	var status int
	if s := h.status[r.URL.Path]; len(s) > 0 {
		status, h.status[r.URL.Path] = s[0], s[1:]
	}
	h.mu.Unlock()
	switch {
	case status != 0:
		w.WriteHeader(status)
	case r.Header.Get("Authorization") != "Bearer secret":
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/api/datasets/own/set/revision/main":
		fmt.Fprintf(w, `{"sha": %q, "private": true}`, hubCommit)
	case r.URL.Path == "/api/datasets/own/set/tree/"+hubCommit:
		h.tree(w, r)
	case strings.HasPrefix(r.URL.Path, "/datasets/own/set/resolve/"+hubCommit+"/"):
		h.send(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (h *fakeHub) tree(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	list := []map[string]any{}
	for i, name := range slices.Sorted(maps.Keys(h.files)) {
		if i < from || h.perPage > 0 && i >= from+h.perPage {
			continue
		}
		data := h.files[name]
		e := map[string]any{"type": "file", "path": name, "size": len(data), "oid": blobID(data)}
		if h.lfs[name] {
			sum := sha256.Sum256(data)
			e["lfs"] = map[string]any{"oid": hex.EncodeToString(sum[:]), "size": len(data), "pointerSize": 130}
		}
		list = append(list, e)
	}
	if h.perPage > 0 && from+h.perPage < len(h.files) {
		w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?recursive=true&cursor=%d>; rel="next"`, r.Host, r.URL.Path, from+h.perPage))
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (h *fakeHub) send(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/datasets/own/set/resolve/"+hubCommit+"/")
	data, ok := h.files[name]
	if other, replaced := h.replace[name]; replaced {
		data = other
	}
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if h.storage != nil && h.lfs[name] {
		http.Redirect(w, r, h.storage.URL+"/"+name, http.StatusFound)
		return
	}
	from := 0
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil && !h.noRange {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		from = 0
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	}
	h.mu.Lock()
	cut := len(data)
	if b := h.breakAt[name]; len(b) > 0 {
		cut, h.breakAt[name] = b[0], b[1:]
	}
	h.mu.Unlock()
	_, _ = w.Write(data[from:max(from, cut)])
	if cut < len(data) {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func blobID(data []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(data))
	_, _ = h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

// newHub serves a data set of one Parquet file in lfs and its archives.
func newHub(t *testing.T) (*fakeHub, *Hub) {
	h := &fakeHub{t: t, lfs: map[string]bool{"data/test-00000-of-00001.parquet": true}, breakAt: map[string][]int{},
		replace: map[string][]byte{}, status: map[string][]int{},
		files: map[string][]byte{"data/test-00000-of-00001.parquet": parquetFile(t, 50, nil), "README.md": []byte("# set\n")}}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return h, &Hub{Endpoint: s.URL, Token: "secret", Cache: t.TempDir(), Wait: time.Millisecond}
}

const theFile = "data/test-00000-of-00001.parquet"

func (h *fakeHub) downloads() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if strings.Contains(r, "/resolve/") {
			out = append(out, r[strings.LastIndex(r, " ")+1:])
		}
	}
	return out
}

func TestHubImportsAndCaches(t *testing.T) {
	fake, hub := newHub(t)
	fake.perPage = 1 // the listing has pages
	for range 2 {
		tasks, _ := importTo(t, Options{From: "hf://own/set@main", Hub: hub})
		if len(tasks) != 50 || tasks[0].Origin.File != "hf://own/set/"+theFile || tasks[0].Meta["dataset_split"] != "test" {
			t.Errorf("%d tasks of %+v", len(tasks), tasks[0].Origin)
		}
	}
	if d := fake.downloads(); len(d) != 1 {
		t.Errorf("downloads %q; the second import has the cache", d)
	}
}

func TestHubResumes(t *testing.T) {
	fake, hub := newHub(t)
	fake.breakAt[theFile] = []int{1000, 3000}
	fake.status["/datasets/own/set/resolve/"+hubCommit+"/"+theFile] = []int{http.StatusServiceUnavailable}
	importTo(t, Options{From: "hf://own/set", Hub: hub})
	d := fake.downloads()
	if len(d) != 4 || d[0] != "" || !strings.HasPrefix(d[2], "bytes=") || !strings.HasPrefix(d[3], "bytes=") {
		t.Errorf("downloads %q; want one refused, one from the start and two continued", d)
	}
	if parts, _ := filepath.Glob(filepath.Join(hub.Cache, "own", "set", hubCommit, "data", "*.part")); len(parts) != 0 {
		t.Errorf("left behind: %v", parts)
	}
}

// TestHubChecks: a damaged or foreign file never comes into the cache; a part of another file is thrown away.
func TestHubChecks(t *testing.T) {
	fake, hub := newHub(t)
	whole := fake.files[theFile]
	damaged := append([]byte{}, whole...)
	damaged[len(damaged)/2] ^= 1
	fake.replace[theFile] = damaged
	opts := Options{From: "hf://own/set", Hub: hub}
	fails(t, opts, milepost.KindCorrupt, "the hub's listing says")
	fake.replace[theFile] = whole[:len(whole)-1]
	fails(t, opts, milepost.KindUnavailable, fmt.Sprintf("%d bytes, the hub's listing says %d", len(whole)-1, len(whole)))
	delete(fake.replace, theFile)

	place := filepath.Join(hub.Cache, "own", "set", hubCommit, filepath.FromSlash(theFile))
	if err := os.WriteFile(place+".part", []byte(strings.Repeat("x", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, opts, milepost.KindCorrupt, "the download was thrown away")
	importTo(t, opts) // the next attempt starts afresh
	if err := os.WriteFile(place+".part", whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(place); err != nil {
		t.Fatal(err)
	}
	before := len(fake.downloads())
	importTo(t, opts)
	if n := len(fake.downloads()) - before; n != 0 {
		t.Errorf("a part that is whole was downloaded again %d times", n)
	}
	fake.noRange = true
	if err := os.Rename(place, place+".part"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(place+".part", 500); err != nil {
		t.Fatal(err)
	}
	importTo(t, opts) // a server that does not continue
}

// TestHubTokenStaysHome: the token goes to the endpoint alone, not to where it redirects to.
func TestHubTokenStaysHome(t *testing.T) {
	fake, hub := newHub(t)
	var got string
	fake.storage = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = w.Write(fake.files[theFile])
	}))
	defer fake.storage.Close()
	fake.storage.URL = strings.Replace(fake.storage.URL, "127.0.0.1", "localhost", 1)
	importTo(t, Options{From: "hf://own/set", Hub: hub})
	if got != "" {
		t.Errorf("the storage was sent %q", got)
	}
}

func TestHubFaults(t *testing.T) {
	fake, hub := newHub(t)
	with := func(change func(*Hub)) *Hub {
		h := *hub
		change(&h)
		return &h
	}
	for _, c := range []struct {
		from string
		hub  *Hub
		kind milepost.Kind
		want string
	}{
		{"hf://own/set", with(func(h *Hub) { h.Endpoint = "" }), milepost.KindInvalid, `HF_ENDPOINT is ""; the base address of the hub is wanted`},
		{"hf://own/set", with(func(h *Hub) { h.Endpoint = "hub" }), milepost.KindInvalid, `HF_ENDPOINT is "hub"`},
		{"hf://own/set", with(func(h *Hub) { h.Token = "" }), milepost.KindDenied, "401 Unauthorized; HF_TOKEN may be missing"},
		{"hf://own/other", hub, milepost.KindNotFound, "404 Not Found; no such data set, revision or file"},
		{"hf://own/set@v9", hub, milepost.KindNotFound, "/api/datasets/own/set/revision/v9"},
		{"hf://own", hub, milepost.KindInvalid, `"hf://own" is not hf://OWNER/NAME`},
		{"hf://own/set@../x", hub, milepost.KindInvalid, "is not hf://OWNER/NAME"},
		{"hf://own/set", hub, milepost.KindInvalid, `hf://own/set has no split "dev"; its files name: test`},
	} {
		opts := Options{From: c.from, Hub: c.hub}
		if strings.Contains(c.want, "split") {
			opts.Split = "dev"
		}
		fails(t, opts, c.kind, c.want)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Import(ctx, Options{From: "hf://own/set", Hub: hub, Out: t.TempDir()}); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("cancelled: %v", err)
	}
	fake.files = map[string][]byte{"README.md": nil}
	fails(t, Options{From: "hf://own/set", Hub: hub}, milepost.KindInvalid, "own/set holds no file that ends in")
}

// TestHubArchives: what rows name is fetched from the same repository, wherever it lies there.
func TestHubArchives(t *testing.T) {
	fake, hub := newHub(t)
	rows, err := os.ReadFile("testdata/beyond.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	fake.files = map[string][]byte{"beyondswe.jsonl": rows, "suites/own_pkg.zip": []byte("PK tests")}
	tasks, sum := importTo(t, Options{From: "hf://own/set", Hub: hub})
	b, err := os.ReadFile(filepath.Join(tasks[3].Grading.Folder, tasks[3].Grading.Archive))
	if err != nil || string(b) != "PK tests" || len(sum.Missing) != 0 {
		t.Errorf("%q, %v, missing %v", b, err, sum.Missing)
	}
}
