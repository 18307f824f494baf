package shadow

import (
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
)

// Connect opens a connection to a server elsewhere. Once made it reconnects for ever: what is published meanwhile waits.
// Errors: KindInvalid for the configuration or an unreadable file, KindUnavailable where no server answers,
// KindDenied where it refuses the credentials.
func Connect(cfg ConnectConfig) (*nats.Conn, error) {
	const op = "shadow: connect"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for _, path := range []string{cfg.TokenFile, cfg.Creds, cfg.TLSCA, cfg.TLSCert, cfg.TLSKey} {
		if err := readable(path); err != nil {
			return nil, milepost.Wrap(op, milepost.KindInvalid, err)
		}
	}
	opts := append(commonOptions(cfg.Name), nats.Timeout(cfg.Timeout))
	if cfg.TokenFile != "" {
		b, err := os.ReadFile(cfg.TokenFile)
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindInvalid, err)
		}
		token := strings.TrimSpace(string(b))
		if token == "" {
			return nil, milepost.E(op, milepost.KindInvalid, "token_file %s holds no token", cfg.TokenFile)
		}
		opts = append(opts, nats.Token(token))
	}
	if cfg.Creds != "" {
		opts = append(opts, nats.UserCredentials(cfg.Creds))
	}
	if cfg.TLSCA != "" {
		opts = append(opts, nats.RootCAs(cfg.TLSCA))
	}
	if cfg.TLSCert != "" {
		opts = append(opts, nats.ClientCert(cfg.TLSCert, cfg.TLSKey))
	}
	for u := range strings.SplitSeq(cfg.URL, ",") {
		if _, err := url.Parse(strings.TrimSpace(u)); err != nil { // whose words hold the URL, with the password
			return nil, milepost.E(op, milepost.KindInvalid, "url %s cannot be read; a password with / : @ or %% in it is written with %%2F, %%3A, %%40, %%25", redact(u))
		}
	}
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		kind := milepost.KindUnavailable
		if strings.Contains(strings.ToLower(err.Error()), "authoriz") {
			kind = milepost.KindDenied
		}
		return nil, milepost.E(op, kind, "NATS server %s: %w", redact(cfg.URL), err)
	}
	return nc, nil
}

// readable says why the file at path cannot be read; "" is no file.
func readable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// redact hides what stands before @ in each URL: a token or a password.
func redact(urls string) string {
	parts := strings.Split(urls, ",")
	for i, u := range parts {
		scheme, rest, ok := strings.Cut(u, "://")
		if at := strings.LastIndex(rest, "@"); ok && at >= 0 {
			parts[i] = scheme + "://…@" + rest[at+1:]
		}
	}
	return strings.Join(parts, ",")
}

func commonOptions(name string) []nats.Option {
	// No buffer while disconnected: a pull request that is sent late asks for a message that nobody waits for any more,
	// which then rests until AckWait; and what must arrive is retried by its sender.
	return []nats.Option{nats.Name(name), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond), nats.PingInterval(20 * time.Second)}
}
