// Package natstest gives tests NATS servers as sites run them: with TLS, and with accounts by an operator's word. A further
// kind of server for tests of several packages goes here; the embedded one is shadow.StartServer.
package natstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// SelfSigned writes a certificate for an IP address, which is its own authority, and its key, as PEM files.
func SelfSigned(t testing.TB, ip string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(ip)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
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

// keyPair gives a new key pair of a kind with its public key.
func keyPair(t testing.TB, make func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
	t.Helper()
	k, err := make()
	must(t, err)
	pub, err := k.PublicKey()
	must(t, err)
	return k, pub
}

// Secured starts a server on an IP address of this machine, with TLS and JetStream, that knows one account by its
// operator's word, as a managed cluster does. Creds is a credentials file of a user of that account who may do what a run and
// a worker under the prefix "milepost" need and nothing else, forged one whose
// account nobody vouches for. It ends with the test.
func Secured(t testing.TB, ip string) (url, ca, creds, forged string) {
	t.Helper()
	operator, operatorPub := keyPair(t, nkeys.CreateOperator)
	stranger, _ := keyPair(t, nkeys.CreateAccount)
	account, accountPub := keyPair(t, nkeys.CreateAccount)
	_, systemPub := keyPair(t, nkeys.CreateAccount)
	oc := jwt.NewOperatorClaims(operatorPub)
	oc.SystemAccount = systemPub
	ac := jwt.NewAccountClaims(accountPub)
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accountJWT, err := ac.Encode(operator)
	must(t, err)
	systemJWT, err := jwt.NewAccountClaims(systemPub).Encode(operator)
	must(t, err)
	resolver := &server.MemAccResolver{}
	must(t, resolver.Store(accountPub, accountJWT))
	must(t, resolver.Store(systemPub, systemJWT))
	cert, key := SelfSigned(t, ip)
	tls, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cert, KeyFile: key})
	must(t, err)
	s, err := server.NewServer(&server.Options{Host: ip, Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		TrustedOperators: []*jwt.OperatorClaims{oc}, AccountResolver: resolver, SystemAccount: systemPub, TLSConfig: tls, TLS: true, TLSTimeout: 10,
		JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 64 << 20})
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server did not come up")
	}
	user := func(signer nkeys.KeyPair) string {
		u, pub := keyPair(t, nkeys.CreateUser)
		claims := jwt.NewUserClaims(pub)
		claims.Pub.Allow.Add("milepost.>", "_INBOX.>", "$JS.API.>", "$JS.ACK.>", "$O.>") // as docs/workers.md says
		claims.Sub.Allow.Add("milepost.>", "_INBOX.>")
		token, err := claims.Encode(signer)
		must(t, err)
		seed, err := u.Seed()
		must(t, err)
		text, err := jwt.FormatUserConfig(token, seed)
		must(t, err)
		path := filepath.Join(t.TempDir(), "user.creds")
		must(t, os.WriteFile(path, text, 0o600))
		return path
	}
	return fmt.Sprintf("tls://%s:%d", ip, s.Addr().(*net.TCPAddr).Port), cert, user(account), user(stranger)
}
