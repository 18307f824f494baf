package servers

import (
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// Config says how servers on other machines and a run keep in touch; `milepost worker serve` and runs read it.
type Config struct {
	Name      string        `yaml:"name"`      // of the server, unique; "" = host and a random part
	Run       string        `yaml:"run"`       // the only run that the server serves, by its id; "" = the first that wants it
	Heartbeat time.Duration `yaml:"heartbeat"` // how often the server tells that it lives, and a run that it wants it
	Lease     time.Duration `yaml:"lease"`     // after so long a silence a server is gone, or free of its run; several heartbeats
	// DrainTimeout is how long a server that stops waits for the requests that it has before they run again elsewhere.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// Default returns the defaults.
func Default() Config {
	return Config{Heartbeat: 2 * time.Second, Lease: 15 * time.Second, DrainTimeout: time.Minute}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c Config) Validate() error {
	const op = "servers: config"
	switch {
	case c.Name != "" && messages.SafeToken(c.Name) != c.Name:
		return milepost.E(op, milepost.KindInvalid, "name %q is not made of letters, digits, - and _ (at most 64)", c.Name)
	case c.Heartbeat < 20*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "heartbeat %s is below 20ms", c.Heartbeat)
	case c.Lease < 2*c.Heartbeat:
		return milepost.E(op, milepost.KindInvalid, "lease %s is below two heartbeats of %s", c.Lease, c.Heartbeat)
	case c.DrainTimeout < 0:
		return milepost.E(op, milepost.KindInvalid, "drain_timeout %s is negative", c.DrainTimeout)
	}
	return nil
}
