package shadow

import (
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// wireVersion is raised when a reader of the old form would misread the new one. It stands in the subjects of requests, so
// that workers are only handed what they can read, and what another version's worker can do waits for that one (streams.go).
const wireVersion = 1

// fileVersion is the version of the lines in the run folder, which outlive an upgrade.
const fileVersion = 1

// address says which publication of which probe a message belongs to. Key names the probe by content; Attempt counts the
// prober's publications of it, Delivery the server's hand-outs of that publication. (Attempt, Delivery) only ever grows,
// and whatever carries a smaller pair than the largest one known is fenced off.
type address struct {
	V        int    `json:"v"`
	Run      string `json:"run"`
	Epoch    uint64 `json:"epoch"`
	Key      string `json:"key"`
	ID       string `json:"id"` // the first request for the probe; for people
	Attempt  int    `json:"attempt"`
	Delivery int    `json:"delivery,omitempty"` // 0 in a request: the worker learns it from the server
}

// wireRequest is one probe to be run.
type wireRequest struct {
	address
	Kind     milepost.ProbeKind    `json:"kind"`
	Task     string                `json:"task"`                // SHA-256 of the task's wire form
	TaskBody json.RawMessage       `json:"task_body,omitempty"` // absent where it is the object task/<Task>
	Tree     string                `json:"tree"`
	Delta    []milepost.TreeChange `json:"delta,omitempty"`
	Blobs    map[string][]byte     `json:"blobs,omitempty"` // by blob id; a blob of Delta that is not here is the object blob/<id>
}

// wireResult is what a worker saw. It claims; trust is decided by the prober.
type wireResult struct {
	address
	Worker string               `json:"worker"`
	Status milepost.ProbeStatus `json:"status"`
	Tree   string               `json:"tree"` // proven by the worker; "" where it came to none
	Report milepost.TestReport  `json:"report,omitempty"`
	Extra  []string             `json:"extra,omitempty"` // reported ids that are not the task's
	Reason string               `json:"reason,omitempty"`
	Retry  bool                 `json:"retry,omitempty"` // status infra: another attempt may do better
	Ran    time.Duration        `json:"ran"`

	own bool // a failure of the worker's own means, not of the request; never sent
}

// wireStarted tells the prober that a worker took a request; lost ones cost only precision.
type wireStarted struct {
	address
	Worker string `json:"worker"`
}

// wireWorker is the heartbeat of a worker. All versions read each other's: fields are only added to it.
type wireWorker struct {
	V int `json:"v"`
	WorkerInfo
}

// WorkerInfo is what a worker tells about itself with every heartbeat.
type WorkerInfo = messages.WorkerInfo

// decode reads a body of this program's version into v after checking its sum. Errors: KindCorrupt.
func decode(h nats.Header, body []byte, v any) error { return messages.Decode(wireVersion, h, body, v) }

// readHeartbeat reads a heartbeat of any version. Errors: KindCorrupt.
func readHeartbeat(h nats.Header, body []byte) (WorkerInfo, error) {
	var w wireWorker
	version, err := messages.DecodeAny(h, body, &w)
	w.Wire = version
	return w.WorkerInfo, err
}
