package shadow

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// TestConnectKeepsSecrets: no refusal of a URL repeats the password or token in it.
func TestConnectKeepsSecrets(t *testing.T) {
	for _, u := range []string{"http://user:hush@h:1", "nats://us:er:h/hush@127.0.0.1:1", "nats://user:%zzhush@h:1", "nats://hush@127.0.0.1:1", "nats://a:1,tls://user:hush/@h"} {
		cfg := DefaultConnect()
		cfg.URL, cfg.Timeout = u, time.Second
		_, err := Connect(cfg)
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func TestConnectWantsAToken(t *testing.T) {
	cfg := DefaultConnect()
	cfg.URL, cfg.TokenFile = "nats://127.0.0.1:1", filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(cfg.TokenFile, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(cfg); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "holds no token") {
		t.Errorf("%v", err)
	}
}
