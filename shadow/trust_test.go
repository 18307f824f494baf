package shadow

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

func TestTrust(t *testing.T) {
	const P, F, N = milepost.Passed, milepost.Failed, milepost.NotRun
	kept, lost := milepost.ContinuityKept, milepost.ContinuityLost
	for _, c := range []struct {
		name    string
		result  wireResult
		trusted bool
		status  milepost.ProbeStatus
		cont    milepost.Continuity
	}{
		{"complete", wireResult{Status: "completed", Tree: "T", Report: milepost.TestReport{P, F}}, true, "completed", ""},
		{"a test not run is a state", wireResult{Status: "completed", Tree: "T", Report: milepost.TestReport{P, N}}, true, "completed", ""},
		{"nothing reported", wireResult{Status: "completed", Tree: "T", Report: milepost.TestReport{N, N}}, false, "unparsed", kept},
		{"ids missing", wireResult{Status: "completed", Tree: "T", Report: milepost.TestReport{P}}, false, "completed", kept},
		{"ids too many", wireResult{Status: "completed", Tree: "T", Report: milepost.TestReport{P, P, P}}, false, "completed", kept},
		{"unknown ids", wireResult{Status: "completed", Tree: "T", Report: milepost.TestReport{P, P}, Extra: []string{"x"}}, false, "completed", kept},
		{"another tree", wireResult{Status: "completed", Tree: "U", Report: milepost.TestReport{P, P}}, false, "tree", lost},
		{"no tree proven", wireResult{Status: "completed", Report: milepost.TestReport{P, P}}, false, "tree", lost},
		{"worker refuses the tree", wireResult{Status: "tree", Tree: "U"}, false, "tree", lost},
		{"time-out with a report", wireResult{Status: "timeout", Tree: "T", Report: milepost.TestReport{P, P}}, false, "timeout", kept},
		{"memory", wireResult{Status: "memory", Tree: "T"}, false, "memory", kept},
		{"unparsed", wireResult{Status: "unparsed", Tree: "T"}, false, "unparsed", kept},
		{"infra", wireResult{Status: "infra"}, false, "infra", kept},
	} {
		p := judge(2, "T", &c.result)
		if p.Trusted != c.trusted || p.Status != c.status || p.Continuity != c.cont || (p.Reason == "") != c.trusted {
			t.Errorf("%s: %+v", c.name, p)
		}
		if p.Status != milepost.ProbeCompleted && p.Report != nil {
			t.Errorf("%s: a report of what did not complete: %+v", c.name, p)
		}
	}
}

func TestConfigsNameTheBadField(t *testing.T) {
	srv := DefaultServer()
	srv.Dir = "d"
	pr := DefaultProber()
	pr.Run, pr.Epoch = "r", 1
	con := DefaultConnect()
	con.URL = "nats://h:1,tls://h:2"
	for _, v := range []interface{ Validate() error }{srv, pr, con, DefaultWorker(), DefaultStreams()} {
		must(t, v.Validate())
	}
	type change struct {
		field string
		cfg   interface{ Validate() error }
	}
	bad := []change{}
	addServer := func(field string, f func(*ServerConfig)) { c := srv; f(&c); bad = append(bad, change{field, c}) }
	addServer("dir", func(c *ServerConfig) { c.Dir = "" })
	addServer("port", func(c *ServerConfig) { c.Port = 70000 })
	addServer("max_payload", func(c *ServerConfig) { c.MaxPayload = 1 })
	addServer("max_store", func(c *ServerConfig) { c.MaxStore = 1 })
	addServer("tls_key", func(c *ServerConfig) { c.TLSCert = "x" })
	addServer("token", func(c *ServerConfig) { c.Listen, c.Host = true, "0.0.0.0" })
	addConnect := func(field string, f func(*ConnectConfig)) { c := con; f(&c); bad = append(bad, change{field, c}) }
	addConnect("url", func(c *ConnectConfig) { c.URL = "" })
	addConnect("url", func(c *ConnectConfig) { c.URL = "nats://h,http://h" })
	addConnect("tls_key", func(c *ConnectConfig) { c.TLSCert = "x" })
	addConnect("timeout", func(c *ConnectConfig) { c.Timeout = 0 })
	addProber := func(field string, f func(*ProberConfig)) { c := pr; f(&c); bad = append(bad, change{field, c}) }
	addProber("run", func(c *ProberConfig) { c.Run = "" })
	addProber("epoch", func(c *ProberConfig) { c.Epoch = 0 })
	addProber("mode", func(c *ProberConfig) { c.Mode = "x" })
	addProber("merge", func(c *ProberConfig) { c.Merge = 6 })
	addProber("merge_behind", func(c *ProberConfig) { c.MergeBehind = -1 })
	addProber("recheck", func(c *ProberConfig) { c.Recheck = math.NaN() })
	addProber("max_attempts", func(c *ProberConfig) { c.MaxAttempts = 0 })
	addProber("retry_delay", func(c *ProberConfig) { c.RetryDelay = 0 })
	addProber("backlog", func(c *ProberConfig) { c.Backlog = 0 })
	addProber("inline_limit", func(c *ProberConfig) { c.InlineLimit = -1 })
	addProber("reconcile", func(c *ProberConfig) { c.Reconcile = 0 })
	addProber("prefix", func(c *ProberConfig) { c.Streams.Prefix = "a.b" })
	addProber("replicas", func(c *ProberConfig) { c.Streams.Replicas = 9 })
	addProber("ack_wait", func(c *ProberConfig) { c.Streams.AckWait = 0 })
	addProber("max_requests", func(c *ProberConfig) { c.Streams.MaxRequests = 0 })
	addProber("max_objects", func(c *ProberConfig) { c.Streams.MaxObjects = 0 })
	addProber("max_age", func(c *ProberConfig) { c.Streams.MaxAge = time.Second })
	addWorker := func(field string, f func(*WorkerConfig)) {
		c := DefaultWorker()
		f(&c)
		bad = append(bad, change{field, c})
	}
	addWorker("name", func(c *WorkerConfig) { c.Name = "a b" })
	addWorker("slots", func(c *WorkerConfig) { c.Slots = 0 })
	addWorker("max_deliveries", func(c *WorkerConfig) { c.MaxDeliveries = 0 })
	addWorker("max_run", func(c *WorkerConfig) { c.MaxRun = 0 })
	addWorker("drain_timeout", func(c *WorkerConfig) { c.DrainTimeout = -1 })
	addWorker("heartbeat", func(c *WorkerConfig) { c.Heartbeat = 0 })
	addWorker("poll", func(c *WorkerConfig) { c.Poll = 0 })
	for _, b := range bad {
		if err := b.cfg.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), b.field) {
			t.Errorf("%s: %v", b.field, err)
		}
	}
}
