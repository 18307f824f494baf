package shadow

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	must(t, err)
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder}), 0o600))
	return cert, key
}

func TestTLS(t *testing.T) {
	cfg := DefaultServer()
	cfg.Dir, cfg.Listen, cfg.Token = t.TempDir(), true, "sesame"
	cfg.TLSCert, cfg.TLSKey = selfSigned(t)
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
