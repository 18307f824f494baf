package trainerbridge

import (
	"context"
	"time"

	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
)

// TransferOffer asks for a transfer group with one replica.
type TransferOffer struct {
	Replica string        // its address; it has one group at a time
	Backend string        // "gloo" or "nccl"
	Host    string        // gloo: address of the trainer's machine that the replica reaches
	Port    int           // gloo: where both meet on it; 0 = any free one
	Workers int           // of the replica
	Timeout time.Duration // longest standstill
	Buffer  int64         // bytes; tensors are packed until they exceed it
}

// TransferInvitation is what a replica needs to join its group, in which the trainer is rank 0.
type TransferInvitation struct {
	Link         int64  // names the group in TransferSend
	Port         int    // gloo
	Group        string // gloo: prefix of the group's keys in the trainer's store
	NCCLUniqueID string // nccl: base64
}

// TransferPlan is what will be sent for a model directory, in order.
type TransferPlan struct {
	Names, DTypes []string
	Shapes        [][]int64
	SHA256        string
}

// TransferOpen offers a replica a group, in place of the one it had. It answers while the trainer trains. Kinds: invalid
// (also nccl without a GPU), conflict (the port is taken), unavailable.
func (c *Client) TransferOpen(ctx context.Context, o TransferOffer) (TransferInvitation, error) {
	reply, err := c.rpc.TransferOpen(ctx, &trainerpb.TransferOpenRequest{
		Replica: o.Replica, Backend: o.Backend, Host: o.Host, Port: int32(o.Port), Workers: int32(o.Workers), TimeoutSeconds: o.Timeout.Seconds(), BufferBytes: o.Buffer,
	})
	if err != nil {
		return TransferInvitation{}, wireError("trainerbridge: transfer open", err)
	}
	return TransferInvitation{Link: reply.Link, Port: int(reply.Port), Group: reply.Group, NCCLUniqueID: reply.NcclUniqueId}, nil
}

// TransferPlan says what TransferSend will send for dir. Kinds: invalid, not_found, corrupt, unavailable.
func (c *Client) TransferPlan(ctx context.Context, dir string) (TransferPlan, error) {
	reply, err := c.rpc.TransferPlan(ctx, &trainerpb.TransferPlanRequest{Dir: dir})
	if err != nil {
		return TransferPlan{}, wireError("trainerbridge: transfer plan", err)
	}
	p := TransferPlan{SHA256: reply.Sha256}
	for _, t := range reply.Tensors {
		p.Names, p.DTypes, p.Shapes = append(p.Names, t.Name), append(p.DTypes, t.Dtype), append(p.Shapes, t.Shape)
	}
	return p, nil
}

// TransferSend sends the weights of dir, whose plan the replica was given, over a link, while the replica receives: from
// the trainer's memory where it still holds what it exported to dir, from the files otherwise. It returns the bytes
// sent. Kinds: unavailable (the replica stood still, left or never came; the link is of no use any more), conflict (dir's plan
// is another by now: ask again), and what is the trainer's own: not_found, corrupt, internal.
func (c *Client) TransferSend(ctx context.Context, link int64, dir, planSHA256 string) (int64, error) {
	reply, err := c.rpc.TransferSend(ctx, &trainerpb.TransferSendRequest{Link: link, Dir: dir, PlanSha256: planSHA256})
	if err != nil {
		return 0, wireError("trainerbridge: transfer send", err)
	}
	return reply.Bytes, nil
}
