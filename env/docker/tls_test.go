package docker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/envtest"
)

// authority signs certificates and keeps them as PEM files in dir.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.sign(t, "ca", nil, time.Now().Add(time.Hour))
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

// sign writes NAME.pem and NAME-key.pem; parent nil signs itself.
func (a *authority) sign(t *testing.T, name string, parent *authority, until time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "milepost test " + name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, IsCA: parent == nil, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	issuer, signer := c, key
	if parent != nil {
		issuer, signer = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, issuer, &key.PublicKey, signer)
	fatal(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	fatal(t, err)
	fatal(t, os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	fatal(t, os.WriteFile(a.file(name+"-key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	cert, err := x509.ParseCertificate(der)
	fatal(t, err)
	return cert, key
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// freePort is one that nobody listens on now.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestTLS has one engine on TCP with client certificates and one on a socket, in one pool.
func TestTLS(t *testing.T) {
	if why := dockertest.Missing(); why != "" {
		t.Skip("no engine of its own can be started: " + why)
	}
	cfg := dockertest.Config(t)
	a := newAuthority(t)
	a.sign(t, "server", a, time.Now().Add(time.Hour))
	a.sign(t, "client", a, time.Now().Add(time.Hour))
	a.sign(t, "expired", a, time.Now().Add(-time.Hour))
	host := fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	dockertest.StartEngine(t, "--host", host, "--tlsverify", "--tlscacert", a.file("ca"), "--tlscert", a.file("server"), "--tlskey", a.file("server-key"))
	cfg.TLSCA, cfg.TLSCert, cfg.TLSKey = a.file("ca"), a.file("client"), a.file("client-key")

	both := cfg
	both.Hosts, both.Slots = append([]string{host}, cfg.Hosts...), 1
	d := open(t, func(c *docker.Config) { *c = both })
	if engines, err := d.Engines(ctx); err != nil || len(engines) != 2 || !strings.Contains(strings.Join(engines, " "), host+" (version") {
		t.Errorf("engines %q %v", engines, err)
	}
	e := env.New(d)
	base := envtest.MakeBase(t)
	boxes := []*env.Sandbox{boxIn(t, e, env.Spec{Base: base}), boxIn(t, e, env.Spec{Base: base})} // a slot each: both engines
	for _, s := range boxes {
		fatal(t, s.WriteFile(ctx, "f", []byte("over the wire"), 0))
		if r := sh(t, s, env.Limits{}, "cat f; echo changed >f; exit 7"); string(r.Stdout) != "over the wire" || r.ExitCode != 7 {
			t.Errorf("%+v", r)
		}
		if data, _, err := s.ReadFile(ctx, "f"); err != nil || string(data) != "changed\n" {
			t.Errorf("%q %v", data, err)
		}
		if c, err := s.Changes(ctx); err != nil || len(c) != 1 {
			t.Errorf("%v %v", c, err)
		}
		fatal(t, s.Reset(ctx))
	}
	fatal(t, e.Close())

	testRefused(t, cfg, host, a)
}

// testRefused opens the engine on host, whose certificates a signs, with wrong ones.
func testRefused(t *testing.T, cfg docker.Config, host string, a *authority) {
	other := newAuthority(t)
	other.sign(t, "client", other, time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		change func(*docker.Config)
		kind   milepost.Kind
		words  string
	}{
		"another authority":             {func(c *docker.Config) { c.TLSCA = other.file("ca") }, milepost.KindUnavailable, "unknown authority"},
		"a client of another authority": {func(c *docker.Config) { c.TLSCert, c.TLSKey = other.file("client"), other.file("client-key") }, milepost.KindUnavailable, "certificate"},
		"an expired client":             {func(c *docker.Config) { c.TLSCert, c.TLSKey = a.file("expired"), a.file("expired-key") }, milepost.KindUnavailable, "certificate"},
		"no client certificate":         {func(c *docker.Config) { c.TLSCert, c.TLSKey = "", "" }, milepost.KindUnavailable, "certificate"},
		"no TLS":                        {func(c *docker.Config) { c.TLSCA, c.TLSCert, c.TLSKey = "", "", "" }, milepost.KindUnavailable, "HTTPS"},
		"a file that is not there":      {func(c *docker.Config) { c.TLSCert = a.file("nothing") }, milepost.KindInvalid, a.file("nothing")},
		"a key of another certificate":  {func(c *docker.Config) { c.TLSKey = a.file("expired-key") }, milepost.KindInvalid, "key"},
	} {
		bad := cfg
		bad.Hosts = []string{host}
		c.change(&bad)
		wantRefused(t, name, bad, c.kind, c.words)
	}
}

func wantRefused(t *testing.T, name string, cfg docker.Config, kind milepost.Kind, words string) {
	t.Helper()
	d, err := docker.New(ctx, cfg)
	if err == nil {
		fatal(t, d.Close())
	}
	if milepost.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), words) || !strings.Contains(fmt.Sprint(err), cfg.Hosts[0]) {
		t.Errorf("%s: %v, want kind %s, %q and the engine's address", name, err, kind, words)
	}
}

// TestTLSExpiredServer asks a server whose certificate has run out.
func TestTLSExpiredServer(t *testing.T) {
	cfg := docker.Default()
	a := newAuthority(t)
	a.sign(t, "server", a, time.Now().Add(-time.Hour))
	pair, err := tls.LoadX509KeyPair(a.file("server"), a.file("server-key"))
	fatal(t, err)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	agent := filepath.Join(t.TempDir(), "agent")
	fatal(t, dockertest.Agent(agent))
	cfg.Hosts, cfg.TLSCA, cfg.Agent, cfg.Image = []string{"tcp://" + server.Listener.Addr().String()}, a.file("ca"), agent, "x"
	wantRefused(t, "an expired server", cfg, milepost.KindUnavailable, "expired")
}
