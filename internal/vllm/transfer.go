package vllm

import (
	"context"
	"net/http"

	"github.com/milepost-rl/milepost"
)

// The routes of vLLM's native weight transfer. The order is init, once; then for each update start, update, finish. A
// server has them where it was started with --weight-transfer-config; without it they fail (KindUnavailable: vLLM
// answers 500, whatever the reason).

// TransferPlan says which tensors will come, in order; the three lists are equally long.
type TransferPlan struct {
	Names  []string  `json:"names"`
	DTypes []string  `json:"dtype_names"` // as torch calls them: float32
	Shapes [][]int64 `json:"shapes"`
}

// WorldSize returns the number of the server's workers, over tensor, pipeline and data parallelism.
func (c *Client) WorldSize(ctx context.Context) (int, error) {
	const op = "vllm: world size"
	var out struct {
		Size int `json:"world_size"`
	}
	if err := c.do(ctx, request{op: op, method: http.MethodGet, path: "/get_world_size", out: &out}); err != nil {
		return 0, err
	}
	if out.Size < 1 {
		return 0, milepost.E(op, milepost.KindCorrupt, "%s: world_size is %d", c.url, out.Size)
	}
	return out.Size, nil
}

// InitTransfer makes the workers join a group; info is the backend's own. It returns once all of the group have come.
func (c *Client) InitTransfer(ctx context.Context, info any) error {
	in := struct {
		Info any `json:"init_info"`
	}{info}
	return c.do(ctx, request{op: "vllm: init weight transfer", method: http.MethodPost, path: "/init_weight_transfer_engine", in: in})
}

// StartUpdate makes the workers ready for new weights; the scheduler must be paused.
func (c *Client) StartUpdate(ctx context.Context) error {
	return c.do(ctx, request{op: "vllm: start weight update", method: http.MethodPost, path: "/start_weight_update"})
}

// UpdateWeights returns once the workers have received the tensors of the plan.
func (c *Client) UpdateWeights(ctx context.Context, plan TransferPlan) error {
	in := struct {
		Plan TransferPlan `json:"update_info"`
	}{plan}
	return c.do(ctx, request{op: "vllm: update weights", method: http.MethodPost, path: "/update_weights", in: in})
}

// FinishUpdate ends the update; the weights are whole from here on. Success says as little of their values as Reload's.
func (c *Client) FinishUpdate(ctx context.Context) error {
	in := struct{}{} // the route wants a body
	return c.do(ctx, request{op: "vllm: finish weight update", method: http.MethodPost, path: "/finish_weight_update", in: in})
}
