package shadow

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/shadow/natstest"
)

func TestTLS(t *testing.T) {
	cfg := DefaultServer()
	cfg.Dir, cfg.Listen, cfg.Token = t.TempDir(), true, "sesame"
	cfg.TLSCert, cfg.TLSKey = natstest.SelfSigned(t, "127.0.0.1")
	s, err := StartServer(cfg)
	must(t, err)
	defer s.Close()
	nc, err := s.Connect("in process")
	must(t, err)
	nc.Close()
	c := DefaultConnect()
	c.URL, c.TokenFile = "tls://127.0.0.1:"+portOf(t, s.URL()), filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(c.TokenFile, []byte("sesame\n"), 0o600))
	if _, err := Connect(c); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("an unknown authority was believed: %v", err)
	}
	c.TLSCA = cfg.TLSCert
	nc, err = Connect(c)
	must(t, err)
	if !nc.TLSRequired() {
		t.Error("the connection is not encrypted")
	}
	nc.Close()
}
