package shadow

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/milepost-rl/milepost"
)

// claims gives a new key pair of a kind with its public key.
func keyPair(t *testing.T, make func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
	t.Helper()
	k, err := make()
	must(t, err)
	pub, err := k.PublicKey()
	must(t, err)
	return k, pub
}

// securedServer is a server with TLS that knows one account with JetStream by its operator's word, as a managed cluster
// does; creds is a credentials file of a user of that account, of another operator where forged.
func securedServer(t *testing.T) (url, ca, creds, forged string) {
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
	cert, key := selfSigned(t)
	tls, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cert, KeyFile: key})
	must(t, err)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		TrustedOperators: []*jwt.OperatorClaims{oc}, AccountResolver: resolver, SystemAccount: systemPub, TLSConfig: tls, TLS: true, TLSTimeout: 10,
		JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 64 << 20})
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	eventually(t, "the server is up", func() bool { return s.ReadyForConnections(100e6) })
	user := func(signer nkeys.KeyPair) string {
		u, pub := keyPair(t, nkeys.CreateUser)
		token, err := jwt.NewUserClaims(pub).Encode(signer)
		must(t, err)
		seed, err := u.Seed()
		must(t, err)
		text, err := jwt.FormatUserConfig(token, seed)
		must(t, err)
		path := filepath.Join(t.TempDir(), "user.creds")
		must(t, os.WriteFile(path, text, 0o600))
		return path
	}
	return "tls://127.0.0.1:" + portOf(t, s.ClientURL()), cert, user(account), user(stranger)
}

// A worker and a prober reach a secured cluster by credentials file and authority, and nobody else does.
func TestCredentials(t *testing.T) {
	r := newRig(t, false)
	c := DefaultConnect()
	var forged string
	c.URL, c.TLSCA, c.Creds, forged = securedServer(t)
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
