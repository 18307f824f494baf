package servers

import (
	"time"

	"github.com/milepost-rl/milepost/internal/messages"
)

// wireVersion is raised when a reader of the old form would misread the new one.
const wireVersion = 1

// subjects gives the names of subjects under a prefix P:
//
//	P.serve.beat.NAME   heartbeat of a server, with what it offers
//	P.serve.claim.NAME  a run to a server: it wants it, still wants it, or lets it go (request and reply)
type subjects string

func (p subjects) beat(name string) string  { return string(p) + ".serve.beat." + name }
func (p subjects) beats() string            { return string(p) + ".serve.beat.*" }
func (p subjects) claim(name string) string { return string(p) + ".serve.claim." + name }

// Offer is a server that may join a run.
type Offer struct {
	URL   string `json:"url"`             // base address that the run reaches it at
	Model string `json:"model,omitempty"` // what tells models of other shapes or tokenizers apart; "" = not known
	Vocab int    `json:"vocab,omitempty"` // size of the vocabulary; 0 = not known
}

// wireBeat is a heartbeat. All versions read each other's: fields are only added to it.
type wireBeat struct {
	V int `json:"v"`
	messages.WorkerInfo
	Offer
	Ready bool          `json:"ready"`          // the server's health is good
	Only  string        `json:"only,omitempty"` // the only run that it serves
	Run   string        `json:"run,omitempty"`  // that holds it
	Epoch uint64        `json:"epoch,omitempty"`
	Drain time.Duration `json:"drain,omitempty"` // how long it waits for its requests when it stops
}

// wireClaim is a run's word to a server.
type wireClaim struct {
	V      int    `json:"v"`
	Run    string `json:"run"`
	Epoch  uint64 `json:"epoch"`
	Free   bool   `json:"free,omitempty"`   // the run has no use for it any more
	Reason string `json:"reason,omitempty"` // why the run will not have it
}

// wireReply answers a claim.
type wireReply struct {
	V     int    `json:"v"`
	Taken bool   `json:"taken"`         // the claim holds
	By    string `json:"by,omitempty"`  // who holds the server otherwise
	Why   string `json:"why,omitempty"` // why the claim does not hold
}
