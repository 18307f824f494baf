package weights

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// TransferConfig says how the trainer and a server find each other, and what goes over the wire.
type TransferConfig struct {
	// Backend is gloo (CPU; Milepost's vLLM plugin) or nccl (GPUs; vLLM's own). Servers that are started here are told. Servers of
	// one's own need --weight-transfer-config {"backend": …}, and for gloo the plugin's directory on PYTHONPATH.
	Backend string        `yaml:"backend"`
	Host    string        `yaml:"host"`    // address of the trainer's machine that the servers reach (gloo); not 127.0.0.1 where they run elsewhere
	Port    int           `yaml:"port"`    // where trainer and servers meet on it; 0 = any free one (gloo)
	Timeout time.Duration `yaml:"timeout"` // longest standstill: meeting, or one buffer; a replica that stands still longer has failed
	// BufferMB is how much is packed into one message. Each side holds two such buffers; a tensor that is larger goes alone.
	BufferMB int `yaml:"buffer_mb"`
}

// The values of TransferConfig.Backend.
const (
	BackendGloo = "gloo"
	BackendNCCL = "nccl"
)

// DefaultTransferConfig is every default.
func DefaultTransferConfig() TransferConfig {
	return TransferConfig{Backend: BackendGloo, Host: "127.0.0.1", Timeout: time.Minute, BufferMB: 256}
}

// Validate checks every field.
func (c TransferConfig) Validate() error {
	const op = "weights: transfer configuration"
	switch {
	case c.Backend != BackendGloo && c.Backend != BackendNCCL:
		return milepost.E(op, milepost.KindInvalid, "backend %q is not one of: %s, %s", c.Backend, BackendGloo, BackendNCCL)
	case c.Host == "":
		return milepost.E(op, milepost.KindInvalid, "host is empty; it must be an address of the trainer's machine")
	case c.Port < 0 || c.Port > 65535:
		return milepost.E(op, milepost.KindInvalid, "port is %d; it must be 0 (any free one) to 65535", c.Port)
	case c.Timeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "timeout is %v; it must be above 0", c.Timeout)
	case c.BufferMB < 1 || c.BufferMB > 1<<16:
		return milepost.E(op, milepost.KindInvalid, "buffer_mb is %d; it must be 1 to 65536", c.BufferMB)
	}
	return nil
}

// Here says whether only servers on the trainer's machine find the trainer.
func (c TransferConfig) Here() bool { return c.Backend == BackendGloo && loopback(c.Host) }

// Reach refuses servers on other machines where host is this machine's own loopback address.
func (c TransferConfig) Reach(servers []string) error {
	if !c.Here() {
		return nil
	}
	for _, s := range servers {
		if u, err := url.Parse(s); err == nil && !loopback(u.Hostname()) {
			return milepost.E("weights: transfer configuration", milepost.KindInvalid, "host is %s, where the server %s does not find the trainer; it must be an address of the trainer's machine", c.Host, s)
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Sender is the trainer's end of a transfer; trainer_bridge.Client is one.
type Sender interface {
	TransferOpen(context.Context, trainerbridge.TransferOffer) (trainerbridge.TransferInvitation, error)
	TransferPlan(ctx context.Context, dir string) (trainerbridge.TransferPlan, error)
	TransferSend(ctx context.Context, link int64, dir, planSHA256 string) (int64, error)
}

// Transfer sends weights from the trainer to a server's workers by vLLM's weight-transfer API. Trainer and replica have
// a group of their own, which is joined before the first push and again after a failure: either end may have been
// started anew.
type Transfer struct {
	cfg    TransferConfig
	sender Sender

	mu     sync.Mutex
	groups map[string]*transferGroup // by the replica's address
}

// transferGroup is what is known of one replica; only one push to a replica runs at a time.
type transferGroup struct {
	link int64
	used bool // weights went through it
}

var _ Method = (*Transfer)(nil)

// NewTransfer contacts nobody.
func NewTransfer(cfg TransferConfig, sender Sender) *Transfer {
	return &Transfer{cfg: cfg, sender: sender, groups: map[string]*transferGroup{}}
}

// Name implements [Method].
func (t *Transfer) Name() string { return MethodTransfer }

// Exclusive implements [Method]: the trainer sends to one replica after the other, over one network card, and the ones
// whose turn has not come sample rather than stand paused.
func (t *Transfer) Exclusive() bool { return true }

// Check implements [Method]; the trainer sees dir under the same path.
func (t *Transfer) Check(w Weights) error { return checkDirectory(w.Dir, "trainer and program") }

// Prepare implements [Method]: it joins the group where there is none, and waits until the trainer is free and has the
// weights, so that no server stands paused for that.
func (t *Transfer) Prepare(ctx context.Context, server *vllm.Client, w Weights) error {
	if t.group(server.URL()) == nil {
		if _, err := t.join(ctx, server); err != nil {
			return err
		}
	}
	_, err := t.plan(ctx, w)
	return err
}

func (t *Transfer) plan(ctx context.Context, w Weights) (trainerbridge.TransferPlan, error) {
	plan, err := t.sender.TransferPlan(ctx, w.Dir)
	if err != nil {
		return plan, &trainerError{err}
	}
	return plan, nil
}

func (t *Transfer) group(url string) *transferGroup {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.groups[url]
}

// keep remembers a replica's group, or forgets it where g is nil.
func (t *Transfer) keep(url string, g *transferGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g == nil {
		delete(t.groups, url)
		return
	}
	t.groups[url] = g
}

// glooInit and ncclInit are what /init_weight_transfer_engine takes: the fields of milepost_vllm's engine and of vLLM's.
type glooInit struct {
	Address string  `json:"master_address"`
	Port    int     `json:"master_port"`
	Group   string  `json:"group"`
	Offset  int     `json:"rank_offset"`
	World   int     `json:"world_size"`
	Buffer  int64   `json:"packed_buffer_size_bytes"`
	Timeout float64 `json:"timeout_seconds"`
}

type ncclInit struct {
	UniqueID string `json:"nccl_unique_id_b64"`
	Offset   int    `json:"rank_offset"`
	World    int    `json:"world_size"`
	Packed   bool   `json:"packed"`
	Buffer   int64  `json:"packed_buffer_size_bytes"`
	Buffers  int    `json:"packed_num_buffers"`
}

// join makes trainer and replica meet.
func (t *Transfer) join(ctx context.Context, server *vllm.Client) (g *transferGroup, err error) {
	err = bounded(ctx, 2*t.cfg.Timeout, func(ctx context.Context) (err error) { g, err = t.meet(ctx, server); return err })
	return g, err
}

func (t *Transfer) meet(ctx context.Context, server *vllm.Client) (*transferGroup, error) {
	workers, err := server.WorldSize(ctx)
	if err != nil {
		return nil, err
	}
	buffer := int64(t.cfg.BufferMB) << 20
	in, err := t.sender.TransferOpen(ctx, trainerbridge.TransferOffer{
		Replica: server.URL(), Backend: t.cfg.Backend, Host: t.cfg.Host, Port: t.cfg.Port, Workers: workers, Timeout: t.cfg.Timeout, Buffer: buffer,
	})
	if err != nil {
		return nil, &trainerError{err}
	}
	var info any = glooInit{t.cfg.Host, in.Port, in.Group, 1, workers + 1, buffer, t.cfg.Timeout.Seconds()}
	if t.cfg.Backend == BackendNCCL {
		info = ncclInit{in.NCCLUniqueID, 1, workers + 1, true, buffer, 2}
	}
	if err := server.InitTransfer(ctx, info); err != nil {
		return nil, err
	}
	g := &transferGroup{link: in.Link}
	t.keep(server.URL(), g)
	return g, nil
}

// Load implements [Method]. A group that has served before may have lost its other end since: then it is joined again, at
// once, and that counts as no failure.
func (t *Transfer) Load(ctx context.Context, server *vllm.Client, w Weights) error {
	g := t.group(server.URL())
	err := t.send(ctx, server, w, g)
	var own *trainerError
	if err != nil && g.used && ctx.Err() == nil && !errors.Is(err, errSilent) && !errors.As(err, &own) {
		again, joined := t.join(ctx, server)
		if joined != nil {
			err = errors.Join(err, joined)
		} else {
			g = again
			err = t.send(ctx, server, w, g)
		}
	}
	if err != nil {
		t.keep(server.URL(), nil)
		return err
	}
	g.used = true
	return nil
}

// send asks for the plan anew: an update since the last one may have changed the order in which the trainer sends.
func (t *Transfer) send(ctx context.Context, server *vllm.Client, w Weights, g *transferGroup) error {
	plan, err := t.plan(ctx, w)
	if err != nil {
		return err
	}
	if err := start(ctx, server); err != nil {
		return err
	}
	var sent error
	both, ctxBoth := errgroup.WithContext(ctx) // either end that fails frees the other
	both.Go(func() error {
		return server.UpdateWeights(ctxBoth, vllm.TransferPlan{Names: plan.Names, DTypes: plan.DTypes, Shapes: plan.Shapes})
	})
	both.Go(func() error {
		_, err := t.sender.TransferSend(ctxBoth, g.link, w.Dir, plan.SHA256)
		sent = blame(err)
		return sent
	})
	if err := both.Wait(); err != nil {
		return errors.Join(err, sent, t.giveUp(ctx, server)) // the server's echo of the trainer's failure may come first
	}
	return server.FinishUpdate(ctx)
}

// blame tells the trainer's own failures (weights it cannot read) from a link that broke, which is unavailable, a plan that
// an update made out of date, which is a conflict, and a call that was given up because the other end failed.
func blame(err error) error {
	switch milepost.KindOf(err) {
	case milepost.KindNotFound, milepost.KindCorrupt, milepost.KindInvalid, milepost.KindInternal:
		return &trainerError{err}
	}
	return err
}

// giveUp ends an update that broke off: parts of it that the server holds back would be counted with those of the next. It is
// an empty update, which vLLM's own engine needs for that. Its failure is no news, except that a server which does not
// answer hangs.
func (t *Transfer) giveUp(ctx context.Context, server *vllm.Client) error {
	return bounded(context.WithoutCancel(ctx), t.cfg.Timeout, func(ctx context.Context) error {
		_ = server.StartUpdate(ctx)
		_ = server.FinishUpdate(ctx)
		return ctx.Err()
	})
}

// start begins an update, where the server believes one under way (a program that was killed began it) after its end.
func start(ctx context.Context, server *vllm.Client) error {
	first := server.StartUpdate(ctx)
	if first == nil || ctx.Err() != nil {
		return first
	}
	if err := server.FinishUpdate(ctx); err != nil {
		return errors.Join(first, err)
	}
	return server.StartUpdate(ctx)
}
