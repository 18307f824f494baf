package shadow

import (
	"net"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// ServerConfig configures the embedded server.
type ServerConfig struct {
	Dir        string `yaml:"dir"`         // where JetStream keeps its files; "" = nats/ in the run folder, filled in by a run
	Listen     bool   `yaml:"listen"`      // open a TCP port too; otherwise only this process can connect
	Host       string `yaml:"host"`        // address to listen on; one that is not loopback needs token and is best used with TLS
	Port       int    `yaml:"port"`        // 0 picks a free one
	Token      string `yaml:"token"`       // what other processes must present; "" = none
	TLSCert    string `yaml:"tls_cert"`    // PEM file of the certificate; both or none with tls_key
	TLSKey     string `yaml:"tls_key"`     // PEM file of its key
	MaxPayload int32  `yaml:"max_payload"` // bytes of one message
	MaxStore   int64  `yaml:"max_store"`   // bytes JetStream may use on disk
}

// DefaultServer returns the defaults: in process only, 1 MiB messages, 8 GiB of disk.
func DefaultServer() ServerConfig {
	return ServerConfig{Host: "127.0.0.1", MaxPayload: 1 << 20, MaxStore: 8 << 30}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c ServerConfig) Validate() error {
	const op = "shadow: server config"
	switch {
	case c.Dir == "":
		return milepost.E(op, milepost.KindInvalid, "dir is empty; it must name the folder for JetStream's files")
	case c.Port < 0 || c.Port > 65535:
		return milepost.E(op, milepost.KindInvalid, "port %d is not within 0..65535 (0 picks a free one)", c.Port)
	case c.MaxPayload < 64<<10 || c.MaxPayload > 64<<20:
		return milepost.E(op, milepost.KindInvalid, "max_payload %d is not within 65536..67108864 bytes", c.MaxPayload)
	case c.MaxStore < 16<<20:
		return milepost.E(op, milepost.KindInvalid, "max_store %d is below 16777216 bytes", c.MaxStore)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return milepost.E(op, milepost.KindInvalid, "tls_cert and tls_key go together; one of them is empty")
	}
	if c.Listen && c.Token == "" {
		if ip := net.ParseIP(c.Host); c.Host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return milepost.E(op, milepost.KindInvalid, "host %q can be reached from other machines: a token is required", c.Host)
		}
	}
	return nil
}

// ConnectConfig says how to reach a NATS server that runs elsewhere.
type ConnectConfig struct {
	URL       string        `yaml:"url"`        // nats://[TOKEN@]HOST:PORT or tls://…; several separated by commas
	Creds     string        `yaml:"creds"`      // NATS credentials file (JWT and seed)
	TokenFile string        `yaml:"token_file"` // file that holds the server's token
	TLSCA     string        `yaml:"tls_ca"`     // PEM file of the authority that signed the server's certificate
	TLSCert   string        `yaml:"tls_cert"`   // PEM file of the client's certificate; both or none with tls_key
	TLSKey    string        `yaml:"tls_key"`    // PEM file of its key
	Name      string        `yaml:"name"`       // shown in the server's connection list
	Timeout   time.Duration `yaml:"timeout"`    // for the first connection; afterwards it reconnects for ever
}

// DefaultConnect returns the defaults; URL is empty and must be set.
func DefaultConnect() ConnectConfig {
	return ConnectConfig{Name: "milepost", Timeout: 10 * time.Second}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c ConnectConfig) Validate() error {
	const op = "shadow: connect config"
	for u := range strings.SplitSeq(c.URL, ",") {
		if u = strings.TrimSpace(u); !strings.HasPrefix(u, "nats://") && !strings.HasPrefix(u, "tls://") {
			return milepost.E(op, milepost.KindInvalid, "url %q does not start with nats:// or tls://", redact(u))
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return milepost.E(op, milepost.KindInvalid, "tls_cert and tls_key go together; one of them is empty")
	}
	if c.Timeout <= 0 {
		return milepost.E(op, milepost.KindInvalid, "timeout %s is not positive", c.Timeout)
	}
	return nil
}

// StreamConfig configures the streams; the orchestrator's holds for all, workers use only the prefix
// and, where they come first, make the streams by theirs.
type StreamConfig struct {
	Prefix   string        `yaml:"prefix"`   // of every stream and subject: letters, digits and dashes
	Replicas int           `yaml:"replicas"` // 1 for the embedded server, 3 for a cluster of three
	AckWait  time.Duration `yaml:"ack_wait"` // a worker that is silent this long loses its probe to another
	MaxAge   time.Duration `yaml:"max_age"`  // what no run collects is deleted after this

	// MaxRequests is bytes that requests may take. The server sets it and max_objects apart, and what is left of its store
	// is for results: were requests to fill all of it, no result could be stored and no request acknowledged.
	MaxRequests int64 `yaml:"max_requests"`
	// MaxObjects is bytes that blobs, task bodies and base archives above the message size may take.
	MaxObjects int64 `yaml:"max_objects"`
}

// DefaultStreams returns the defaults.
func DefaultStreams() StreamConfig {
	return StreamConfig{Prefix: "milepost", Replicas: 1, AckWait: 30 * time.Second, MaxAge: 24 * time.Hour,
		MaxRequests: 1 << 30, MaxObjects: 4 << 30}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c StreamConfig) Validate() error {
	const op = "shadow: stream config"
	switch {
	case c.Prefix == "" || messages.SafeToken(c.Prefix) != c.Prefix:
		return milepost.E(op, milepost.KindInvalid, "prefix %q is not made of letters, digits, - and _", c.Prefix)
	case c.Replicas < 1 || c.Replicas > 5:
		return milepost.E(op, milepost.KindInvalid, "replicas %d is not within 1..5", c.Replicas)
	case c.AckWait < 100*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "ack_wait %s is below 100ms", c.AckWait)
	case c.MaxRequests < 1<<20:
		return milepost.E(op, milepost.KindInvalid, "max_requests %d is below 1048576 bytes", c.MaxRequests)
	case c.MaxObjects < 1<<20:
		return milepost.E(op, milepost.KindInvalid, "max_objects %d is below 1048576 bytes", c.MaxObjects)
	case c.MaxAge < time.Minute:
		return milepost.E(op, milepost.KindInvalid, "max_age %s is below 1m", c.MaxAge)
	}
	return nil
}

// ProberConfig configures the orchestrator's side.
type ProberConfig struct {
	Run       string `yaml:"-"` // id of the run
	Epoch     uint64 `yaml:"-"` // higher with every start of the run, from 1; older epochs are ignored
	CacheFile string `yaml:"-"` // the result cache in the run folder; "" = in memory only
	FlakyFile string `yaml:"-"` // the flaky tests found, in the run folder; "" = in memory only

	Mode        Mode          `yaml:"mode"`         // shadow (beside the agent), synchronous (the agent waits, for comparison) or off
	Streams     StreamConfig  `yaml:"streams"`      // the JetStream streams of the run
	MaxAttempts int           `yaml:"max_attempts"` // failures of infrastructure at one probe before the last is final; what is lost in transport is not counted
	RetryDelay  time.Duration `yaml:"retry_delay"`  // before the second attempt; doubles with each further one
	Backlog     int           `yaml:"backlog"`      // probes accepted and not yet on the stream; beyond it publishing fails
	InlineLimit int           `yaml:"inline_limit"` // bytes of blobs in one message; what is above goes through the object store
	Reconcile   time.Duration `yaml:"reconcile"`    // how often requests are compared with the stream to find lost ones

	// Merge is the most consecutive edits to the same files that one probe verifies while the queue is behind; 1 = never.
	Merge int `yaml:"merge"`
	// MergeBehind is how many probes must wait for each slot of the workers for the queue to be behind; 0 = it always is.
	MergeBehind float64 `yaml:"merge_behind"`
	// Recheck is the share of the states that are tested a second time, behind everything else, to find flaky tests.
	Recheck float64 `yaml:"recheck"`
}

// DefaultProber returns the defaults; Run and Epoch must be set.
func DefaultProber() ProberConfig {
	return ProberConfig{Mode: ModeShadow, Streams: DefaultStreams(), MaxAttempts: 5, RetryDelay: 500 * time.Millisecond,
		Backlog: 1 << 16, InlineLimit: 256 << 10, Reconcile: 5 * time.Second, Merge: 5, MergeBehind: 8, Recheck: .02}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c ProberConfig) Validate() error {
	const op = "shadow: prober config"
	switch {
	case c.Run == "":
		return milepost.E(op, milepost.KindInvalid, "run is empty; it must be the id of the run")
	case c.Epoch == 0:
		return milepost.E(op, milepost.KindInvalid, "epoch is 0; the first start of a run is epoch 1")
	case !c.Mode.valid():
		return milepost.E(op, milepost.KindInvalid, "mode %q is not one of shadow, synchronous, off", c.Mode)
	case c.MaxAttempts < 1 || c.MaxAttempts > 100:
		return milepost.E(op, milepost.KindInvalid, "max_attempts %d is not within 1..100", c.MaxAttempts)
	case c.RetryDelay <= 0:
		return milepost.E(op, milepost.KindInvalid, "retry_delay %s is not positive", c.RetryDelay)
	case c.Backlog < 1:
		return milepost.E(op, milepost.KindInvalid, "backlog %d is below 1", c.Backlog)
	case c.InlineLimit < 0:
		return milepost.E(op, milepost.KindInvalid, "inline_limit %d is negative", c.InlineLimit)
	case c.Merge < 1 || c.Merge > 5:
		return milepost.E(op, milepost.KindInvalid, "merge %d is not within 1..5 (1 = never)", c.Merge)
	case !(c.MergeBehind >= 0 && c.MergeBehind <= 1e6):
		return milepost.E(op, milepost.KindInvalid, "merge_behind %v is not within 0..1000000", c.MergeBehind)
	case !(c.Recheck >= 0 && c.Recheck <= 1):
		return milepost.E(op, milepost.KindInvalid, "recheck %v is not within 0..1", c.Recheck)
	case c.Reconcile < 50*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "reconcile %s is below 50ms", c.Reconcile)
	}
	return c.Streams.Validate()
}

// WorkerConfig configures a worker process.
type WorkerConfig struct {
	Name          string        `yaml:"name"`           // unique among the workers; "" = host and a random part
	Slots         int           `yaml:"slots"`          // probes run at once
	Streams       StreamConfig  `yaml:"streams"`        // as the orchestrator's
	MaxDeliveries int           `yaml:"max_deliveries"` // a request handed out more often than this (it kills its workers) is set aside
	MaxRun        time.Duration `yaml:"max_run"`        // one probe with all its preparation; past it, it counts as failed infrastructure. Tests have their own limit
	DrainTimeout  time.Duration `yaml:"drain_timeout"`  // how long a stopping worker finishes what it holds before it hands it back
	Heartbeat     time.Duration `yaml:"heartbeat"`      // how often it tells that it lives
	Poll          time.Duration `yaml:"poll"`           // how often an idle slot looks for work it was not woken for
}

// DefaultWorker returns the defaults: two slots.
func DefaultWorker() WorkerConfig {
	return WorkerConfig{Slots: 2, Streams: DefaultStreams(), MaxDeliveries: 5, MaxRun: 2 * time.Hour, DrainTimeout: 30 * time.Second,
		Heartbeat: 2 * time.Second, Poll: time.Second}
}

// Validate reports the first bad field. Errors: KindInvalid.
func (c WorkerConfig) Validate() error {
	const op = "shadow: worker config"
	switch {
	case c.Name != "" && messages.SafeToken(c.Name) != c.Name:
		return milepost.E(op, milepost.KindInvalid, "name %q is not made of letters, digits, - and _ (at most 64)", c.Name)
	case c.Slots < 1 || c.Slots > 1024:
		return milepost.E(op, milepost.KindInvalid, "slots %d is not within 1..1024", c.Slots)
	case c.MaxDeliveries < 1:
		return milepost.E(op, milepost.KindInvalid, "max_deliveries %d is below 1", c.MaxDeliveries)
	case c.MaxRun <= 0:
		return milepost.E(op, milepost.KindInvalid, "max_run %s is not positive", c.MaxRun)
	case c.DrainTimeout < 0:
		return milepost.E(op, milepost.KindInvalid, "drain_timeout %s is negative", c.DrainTimeout)
	case c.Heartbeat < 50*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "heartbeat %s is below 50ms", c.Heartbeat)
	case c.Poll < 10*time.Millisecond:
		return milepost.E(op, milepost.KindInvalid, "poll %s is below 10ms", c.Poll)
	}
	return c.Streams.Validate()
}
