package shadow

import (
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/shadow/natstest"
)

// A worker and a prober reach a secured cluster by credentials file and authority, and nobody else does.
func TestCredentials(t *testing.T) {
	r := newRig(t, false)
	c := DefaultConnect()
	var forged string
	c.URL, c.TLSCA, c.Creds, forged = natstest.Secured(t, "127.0.0.1")
	r.prober.Streams.MaxRequests, r.prober.Streams.MaxObjects = 8<<20, 8<<20
	nc, err := Connect(c)
	must(t, err)
	defer nc.Close()
	p, err := NewProber(t.Context(), nc, r.prober, r.blobs)
	must(t, err)
	defer func() { must(t, p.Close()) }()
	wnc, err := Connect(c)
	must(t, err)
	defer wnc.Close()
	w, err := NewWorker(t.Context(), wnc, r.worker, &fakeRunner{}, r.blobs)
	must(t, err)
	defer runWorker(t, w)()
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted {
		t.Errorf("probe %+v", got)
	}
	for what, change := range map[string]func(*ConnectConfig){
		"no credentials":  func(c *ConnectConfig) { c.Creds = "" },
		"a forged user":   func(c *ConnectConfig) { c.Creds = forged },
		"a missing file":  func(c *ConnectConfig) { c.Creds = filepath.Join(t.TempDir(), "none.creds") },
		"a wrong CA file": func(c *ConnectConfig) { c.TLSCA = filepath.Join(t.TempDir(), "none.pem") },
	} {
		bad := c
		change(&bad)
		_, err := Connect(bad)
		want := milepost.KindDenied
		if what[:2] == "a " && what != "a forged user" {
			want = milepost.KindInvalid
		}
		if milepost.KindOf(err) != want {
			t.Errorf("%s: kind %s, %v; want %s", what, milepost.KindOf(err), err, want)
		}
	}
}
