package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// wireVersion is raised when a reader of the old form would misread the new one. Notices and heartbeats of any version can be
// told apart, so both sides say whom they cannot work with; everything else stays among those of one version.
const wireVersion = 1

// subjects gives the names of subjects under a prefix P; R is the run's id as one token, N its epoch. Whoever sends to an older
// epoch finds nobody there.
//
//	P.rollout.run.R         notice: run to workers, each second and at each change
//	P.rollout.hello         a worker joins; runs answer with a notice
//	P.rollout.worker.NAME   heartbeat, with what the worker holds
//	P.rollout.cancel.R      cancellation: run to workers
//	P.rollout.ask.R.N       a free slot asks for an episode (request and reply, as the next two)
//	P.rollout.step.R.N      a probe request of an episode under way
//	P.rollout.result.R.N    an episode that ended, or is handed back
//	P.rollout.endpoints.R.N asks for the states of the endpoints as they are now
type subjects string

func (p subjects) notice(run string) string {
	return string(p) + ".rollout.run." + messages.SafeToken(run)
}
func (p subjects) notices() string           { return string(p) + ".rollout.run.*" }
func (p subjects) hello() string             { return string(p) + ".rollout.hello" }
func (p subjects) worker(name string) string { return string(p) + ".rollout.worker." + name }
func (p subjects) workers() string           { return string(p) + ".rollout.worker.*" }
func (p subjects) cancel(run string) string {
	return string(p) + ".rollout.cancel." + messages.SafeToken(run)
}
func (p subjects) cancels() string { return string(p) + ".rollout.cancel.*" }
func (p subjects) ask(run string, epoch uint64) string {
	return p.toRun("ask", run, epoch)
}
func (p subjects) step(run string, epoch uint64) string   { return p.toRun("step", run, epoch) }
func (p subjects) result(run string, epoch uint64) string { return p.toRun("result", run, epoch) }
func (p subjects) endpoints(run string, epoch uint64) string {
	return p.toRun("endpoints", run, epoch)
}
func (p subjects) toRun(what, run string, epoch uint64) string {
	return fmt.Sprintf("%s.rollout.%s.%s.%d", p, what, messages.SafeToken(run), epoch)
}

// address says which hand-out of which episode a message belongs to. Attempt grows with each hand-out of the
// episode in this epoch.
type address struct {
	Run     string `json:"run"`
	Epoch   uint64 `json:"epoch"`
	Episode string `json:"episode"`
	Attempt int    `json:"attempt"`
}

// wireNotice tells workers of a run. Seq grows with each notice of an epoch, so that an older one never replaces a newer.
type wireNotice struct {
	V         int                    `json:"v"`
	Run       string                 `json:"run"`
	Epoch     uint64                 `json:"epoch"`
	Seq       uint64                 `json:"seq"`
	Waiting   int                    `json:"waiting"` // episodes that nobody has taken
	Endpoints []policy.EndpointState `json:"endpoints"`
	Lease     time.Duration          `json:"lease"`            // silence after which a worker loses its episodes
	Closed    bool                   `json:"closed,omitempty"` // the run ends here: nobody waits for its episodes
}

// wireAsk is a free slot's request for work.
type wireAsk struct {
	V      int    `json:"v"`
	Worker string `json:"worker"`
}

// wireEndpoints answers a wireAsk for endpoints.
type wireEndpoints struct {
	V         int                    `json:"v"`
	Endpoints []policy.EndpointState `json:"endpoints"`
}

// wireOffer answers it. An offer without an episode has nothing to do.
type wireOffer struct {
	V int `json:"v"`
	address
	Order parcel `json:"order"` // a wireOrder
}

// wireOrder is everything that an episode needs.
type wireOrder struct {
	Settings   Settings        `json:"settings"`
	Request    rollout.Request `json:"request"` // with agentTask of its task
	ProbeSteps bool            `json:"probe_steps"`
}

// Settings are a run's settings that its episodes follow, wherever they live. No secret is in them.
type Settings struct {
	Rollout rollout.Config     `json:"rollout"`
	Pool    policy.PoolConfig  `json:"pool"` // without addresses, which come with notices
	Token   policy.TokenConfig `json:"token"`
	// Fresh asks the run for the states of its endpoints as they are now; a worker fills it in (policy.PoolDeps.Fresh).
	Fresh func(context.Context) ([]policy.EndpointState, error) `json:"-"`
}

// wireStep is a probe request of an episode under way, without its task, which the run knows.
type wireStep struct {
	V int `json:"v"`
	address
	Request parcel            `json:"request"`         // a milepost.ProbeRequest
	Blobs   map[string][]byte `json:"blobs,omitempty"` // of its difference, those that the episode did not send before; one that is neither here nor known is the object blob/ID
}

// wireResult is an episode that ended at a worker, or one that it hands back.
type wireResult struct {
	V int `json:"v"`
	address
	Worker   string            `json:"worker"`
	Returned bool              `json:"returned,omitempty"` // handed back, unfinished
	Body     parcel            `json:"body"`               // a milepost.Episode
	Blobs    map[string][]byte `json:"blobs,omitempty"`    // as in wireStep, of all of the episode's differences
}

// wireReply answers a step or a result.
type wireReply struct {
	V        int    `json:"v"`
	Unwanted bool   `json:"unwanted,omitempty"` // the attempt is over: nobody waits for it
	Error    string `json:"error,omitempty"`    // it could not be taken; the sender tries again
}

// wireCancel ends hand-outs.
type wireCancel struct {
	V    int       `json:"v"`
	Over []address `json:"over"`
}

// wireWorker is the heartbeat of a worker. All versions read each other's: fields are only added to it.
type wireWorker struct {
	V int `json:"v"`
	WorkerInfo
	Held []address `json:"held,omitempty"`
	Only string    `json:"only,omitempty"` // the only run whose episodes it takes
}

// WorkerInfo is what a worker tells about itself with every heartbeat.
type WorkerInfo = messages.WorkerInfo

// agentTask is the part of a task that an agent's side needs. Tests, the reference patch and what judges a patch stay home.
func agentTask(t *milepost.Task) *milepost.Task {
	out := &milepost.Task{ID: t.ID, Kind: t.Kind, Statement: t.Statement, Repo: t.Repo, BaseCommit: t.BaseCommit, BaseTree: t.BaseTree,
		Image: t.Image, Workdir: t.Workdir, Prepare: t.Prepare, Protected: t.Protected, Test: milepost.TestCommand{Env: t.Test.Env}}
	if t.Grading != nil {
		out.Grading = &milepost.Grading{Rule: t.Grading.Rule, Hidden: t.Grading.Hidden}
	}
	return out
}

// differences are all differences from the base that an episode names.
func differences(e *milepost.Episode) []milepost.TreeChange {
	var out []milepost.TreeChange
	for i := range e.Steps {
		out = append(out, e.Steps[i].Delta...)
	}
	return append(out, e.FinalDelta...)
}

// marshal is JSON of a value of this package.
func marshal(v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	return b, milepost.Wrap("remote: encode", milepost.KindInternal, err)
}
