package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"golang.org/x/sync/errgroup"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
)

// registry serves one image, whatever its name and tag, and notes when a manifest was asked for.
type registry struct {
	blobs    map[string][]byte
	manifest []byte

	mu    sync.Mutex
	asked []time.Time
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func newRegistry(t *testing.T) (*registry, string) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"tmp", "proc", "dev", "sys", "workspace"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[%q]}}`, digest(layer.Bytes()))
	const kind = "application/vnd.docker."
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind + "distribution.manifest.v2+json",
		"config": map[string]any{"mediaType": kind + "container.image.v1+json", "size": len(config), "digest": digest(config)},
		"layers": []any{map[string]any{"mediaType": kind + "image.rootfs.diff.tar", "size": layer.Len(), "digest": digest(layer.Bytes())}}})
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{blobs: map[string][]byte{digest(config): config, digest(layer.Bytes()): layer.Bytes()}, manifest: manifest}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, strings.TrimPrefix(server.URL, "http://")
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch parts := strings.Split(req.URL.Path, "/"); {
	case strings.Contains(req.URL.Path, "/missing/"):
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, http.StatusNotFound)
	case strings.Contains(req.URL.Path, "/manifests/"):
		if req.Method == http.MethodHead || !strings.Contains(req.URL.Path, "sha256:") {
			r.mu.Lock()
			r.asked = append(r.asked, time.Now())
			r.mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
		w.Header().Set("Docker-Content-Digest", digest(r.manifest))
		_, _ = w.Write(r.manifest)
	case strings.Contains(req.URL.Path, "/blobs/"):
		_, _ = w.Write(r.blobs[parts[len(parts)-1]])
	}
}

func (r *registry) times() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.asked...)
}

func TestPull(t *testing.T) {
	r, host := newRegistry(t)
	cfg := dockertest.Config(t)
	cli := dockertest.Client(t, cfg.Hosts[0])
	name := func(n string) string { return host + "/x/" + n + ":1" }
	t.Cleanup(func() {
		for _, n := range []string{"one", "a", "b", "c"} {
			_, _ = cli.ImageRemove(ctx, name(n), image.RemoveOptions{Force: true}) // some were never pulled
		}
	})
	e := env.New(open(t, func(c *docker.Config) { c.Pull, c.Image = docker.PullMissing, "" }))
	defer e.Close()
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			s, err := e.Create(ctx, env.Spec{Image: name("one")})
			if err != nil {
				return err
			}
			// There is no program at all in this image; the agent needs none.
			if err := s.WriteFile(ctx, "f", []byte("x"), 0); err != nil {
				return err
			}
			if r, err := s.Exec(ctx, env.Command{Argv: []string{"sh"}}); err != nil || r.ExitCode != 127 {
				return fmt.Errorf("a program in an empty image: %+v %w", r, err)
			}
			return s.Close(ctx)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.times()); n == 0 || n > 2 {
		t.Errorf("eight sandboxes of one image asked for its manifest %d times", n)
	}
	_, err := e.Create(ctx, env.Spec{Image: host + "/x/missing:1"})
	if k := milepost.KindOf(err); k != milepost.KindNotFound || !strings.Contains(err.Error(), "missing:1") {
		t.Errorf("an image that is nowhere: %q %v", k, err)
	}
	_, err = e.Create(ctx, env.Spec{})
	if milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("no image at all: %v", err)
	}
}

// TestPullRate pulls three images where one a second is allowed.
func TestPullRate(t *testing.T) {
	r, host := newRegistry(t)
	cfg := dockertest.Config(t)
	cli := dockertest.Client(t, cfg.Hosts[0])
	images := []string{host + "/x/a:1", host + "/x/b:1", host + "/x/c:1"}
	t.Cleanup(func() {
		for _, name := range images {
			_, _ = cli.ImageRemove(ctx, name, image.RemoveOptions{Force: true})
		}
	})
	begin := time.Now()
	open(t, func(c *docker.Config) {
		c.Pull, c.PullRate, c.PullBurst, c.Prepull = docker.PullMissing, 60, 1, images
	})
	if took := time.Since(begin); took < 2*time.Second || len(r.times()) < 3 {
		t.Errorf("three pulls at one a second took %v, asked %d times", took, len(r.times()))
	}
	for _, name := range images {
		if _, err := cli.ImageInspect(ctx, name); err != nil {
			t.Errorf("a pre-pulled image: %v", err)
		}
	}
	never := open(t, func(c *docker.Config) { c.Pull = docker.PullNever })
	err := never.Prepull(ctx, []string{host + "/x/never:1"})
	if milepost.KindOf(err) != milepost.KindNotFound || !strings.Contains(err.Error(), "pull is never") {
		t.Errorf("an image that may not be pulled: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := never.Prepull(gone, []string{host + "/x/never:2"}); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("Prepull under a dead context: %v", err)
	}
}
