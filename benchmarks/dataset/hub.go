package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// HubScheme begins the address of a repository on the hub: hf://owner/name[@revision].
const HubScheme = "hf://"

// Hub reaches a hub that speaks the API of the Hugging Face Hub. It is not safe for concurrent use.
//
// What it holds to: a file is in the cache under its commit, whole and checked, or not at all; what came of a broken
// download is kept beside it and continued; the token goes to Endpoint alone, never to where it redirects to.
type Hub struct {
	Endpoint string        // base address, as HF_ENDPOINT gives it; no default is built in
	Token    string        // as HF_TOKEN gives it; "" = public data sets alone
	Cache    string        // folder of downloaded files
	Client   *http.Client  // nil = one without a total time limit
	Wait     time.Duration // between attempts; 0 = one second
}

// hubAddress is a parsed address.
type hubAddress struct{ repo, revision string }

var hubForm = regexp.MustCompile(`^([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?$`)

func parseHub(address string) (hubAddress, error) {
	m := hubForm.FindStringSubmatch(strings.TrimPrefix(address, HubScheme))
	if m == nil || strings.Contains(m[2], "..") {
		return hubAddress{}, milepost.E("dataset: hub", milepost.KindInvalid, "%q is not %sOWNER/NAME or %sOWNER/NAME@REVISION", address, HubScheme, HubScheme)
	}
	if m[2] == "" {
		m[2] = "main"
	}
	return hubAddress{m[1], m[2]}, nil
}

// hubFile is one file of a repository's listing.
type hubFile struct {
	Type string `json:"type"` // file or directory
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"` // git blob id; of the pointer where lfs is there
	LFS  *struct {
		OID  string `json:"oid"` // sha256 of the content
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// hubRepo is a repository at one commit.
type hubRepo struct {
	hub   *Hub
	repo  string
	sha   string
	files []hubFile
}

// open resolves the revision to a commit and lists its files.
func (h *Hub) open(ctx context.Context, address string) (*hubRepo, error) {
	const op = "dataset: hub"
	a, err := parseHub(address)
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(h.Endpoint)
	if h.Endpoint == "" || err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, milepost.E(op, milepost.KindInvalid, "HF_ENDPOINT is %q; the base address of the hub is wanted, such as https://HOST "+
			"(python3 -c 'import huggingface_hub; print(huggingface_hub.constants.ENDPOINT)' prints the usual one)", h.Endpoint)
	}
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := h.get(ctx, h.api(a.repo, "revision", a.revision), &info); err != nil {
		return nil, err
	}
	if !objectID.MatchString(info.SHA) {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: the hub names commit %q for revision %s", a.repo, info.SHA, a.revision)
	}
	r := &hubRepo{hub: h, repo: a.repo, sha: info.SHA}
	next := h.api(a.repo, "tree", info.SHA) + "?recursive=true"
	for next != "" {
		var page []hubFile
		if next, err = h.get(ctx, next, &page); err != nil {
			return nil, err
		}
		for _, f := range page {
			if f.Type == "file" && localFile(f.Path) {
				r.files = append(r.files, f)
			}
		}
	}
	return r, nil
}

var objectID = regexp.MustCompile(`^[0-9a-f]{40}$`)

func (h *Hub) api(repo, what, revision string) string {
	return strings.TrimRight(h.Endpoint, "/") + "/api/datasets/" + repo + "/" + what + "/" + url.PathEscape(revision)
}

var nextLink = regexp.MustCompile(`<([^>]+)>\s*;\s*rel="?next"?`)

// get reads a JSON answer and returns the address of the next page, "" at the last. Pages elsewhere are refused, since
// the token would go there.
func (h *Hub) get(ctx context.Context, address string, into any) (next string, err error) {
	const op = "dataset: hub"
	const most = 64 << 20
	err = h.attempts(ctx, func() error {
		resp, err := h.send(ctx, address, 0)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
		if err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		if len(body) > most {
			return milepost.E(op, milepost.KindInvalid, "%s: the answer is larger than %d MiB", address, most>>20)
		}
		if err := json.Unmarshal(body, into); err != nil {
			return milepost.E(op, milepost.KindCorrupt, "%s: no JSON of the hub's: %w", address, err)
		}
		next = ""
		if m := nextLink.FindStringSubmatch(resp.Header.Get("Link")); m != nil {
			next = m[1]
		}
		return nil
	})
	if err == nil && next != "" && !strings.HasPrefix(next, strings.TrimRight(h.Endpoint, "/")+"/") {
		return "", milepost.E(op, milepost.KindDenied, "the next page of %s lies at %s, which is not below HF_ENDPOINT", address, next)
	}
	return next, err
}

// send makes one request, from a byte on, and turns what is no success into an error of the right kind.
func (h *Hub) send(ctx context.Context, address string, from int64) (*http.Response, error) {
	const op = "dataset: hub"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token) // net/http drops it where it is redirected to another host
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	client := h.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	switch {
	case resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusPartialContent && from > 0:
		return resp, nil
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && from > 0:
		return resp, nil // the caller starts again
	}
	_ = resp.Body.Close()
	kind, hint := milepost.KindUnavailable, ""
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		kind, hint = milepost.KindDenied, "; HF_TOKEN may be missing, or lacks the right to this data set"
	case http.StatusNotFound:
		kind, hint = milepost.KindNotFound, "; no such data set, revision or file, or it is private and HF_TOKEN is missing"
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
		kind = milepost.KindInvalid
	}
	return nil, milepost.E(op, kind, "%s: %s%s", address, resp.Status, hint)
}

// attempts repeats what failed for the infrastructure's sake.
func (h *Hub) attempts(ctx context.Context, do func() error) (err error) {
	const most = 5
	wait := h.Wait
	if wait == 0 {
		wait = time.Second
	}
	for range most {
		if err = do(); err == nil || milepost.KindOf(err) != milepost.KindUnavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return milepost.Wrap("dataset: hub", milepost.KindCanceled, ctx.Err())
		case <-time.After(wait):
		}
		wait *= 2
	}
	return err
}

// sources are the data files of the repository, downloaded when they are opened.
func (r *hubRepo) sources(split string) ([]source, error) {
	const op = "dataset: hub"
	var data []hubFile
	for _, f := range r.files {
		if isData(f.Path) {
			data = append(data, f)
		}
	}
	if len(data) == 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "%s holds no file that ends in %s", r.repo, strings.Join(dataEndings, ", "))
	}
	data, err := chooseSplit(data, func(f hubFile) string { return splitOf(f.Path) }, split, HubScheme+r.repo)
	if err != nil {
		return nil, err
	}
	var out []source
	for _, f := range data {
		name := HubScheme + r.repo + "/" + f.Path
		out = append(out, source{name: name, split: splitOf(f.Path), open: func(ctx context.Context) (reader, error) {
			p, err := r.fetch(ctx, f)
			if err != nil {
				return nil, err
			}
			s := fileSource(p, name)
			return s.open(ctx)
		}})
	}
	return out, nil
}

// find finds a file that a row names, by its path or, for archives, by its base name, and downloads it.
func (r *hubRepo) find(ctx context.Context) func(string) (string, bool, error) {
	return func(name string) (string, bool, error) {
		for _, byBase := range []bool{false, true} {
			for _, f := range r.files {
				if f.Path == name || byBase && strings.HasSuffix(name, ".zip") && baseOf(f.Path) == baseOf(name) {
					p, err := r.fetch(ctx, f)
					return p, err == nil, err
				}
			}
		}
		return "", false, nil
	}
}

// place is where a file of the repository lies in the cache.
func (r *hubRepo) place(f hubFile) string {
	return filepath.Join(r.hub.Cache, filepath.FromSlash(r.repo), r.sha, filepath.FromSlash(f.Path))
}

// fetch returns the local path of a file, from the cache or downloaded.
func (r *hubRepo) fetch(ctx context.Context, f hubFile) (string, error) {
	p := r.place(f)
	if info, err := os.Stat(p); err == nil && info.Size() == f.size() {
		return p, nil
	}
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return "", milepost.Wrap("dataset: hub", milepost.KindUnavailable, err)
	}
	address := strings.TrimRight(r.hub.Endpoint, "/") + "/datasets/" + r.repo + "/resolve/" + r.sha + "/" + (&url.URL{Path: f.Path}).EscapedPath()
	err := r.hub.attempts(ctx, func() error { return r.hub.download(ctx, address, p, f) })
	return p, err
}

func (f hubFile) size() int64 {
	if f.LFS != nil {
		return f.LFS.Size
	}
	return f.Size
}
