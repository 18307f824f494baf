package vllm

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// LoraServing says which adapters a server takes while it runs. vLLM keys cached prefixes by an adapter's name and path, so
// a new name for each version keeps their caches apart.
type LoraServing struct {
	Rank        int `yaml:"-"`             // largest rank of an adapter, 0 = the server takes none; trainer.lora.rank where weights.method is lora
	MaxLoras    int `yaml:"max_loras"`     // adapters that sample at once; a request of one more waits until the requests of another have ended
	MaxCPULoras int `yaml:"max_cpu_loras"` // adapters kept in memory, at least max_loras; those of requests under way have to be among them
}

// DefaultLoraServing is enough for the default staleness of asynchronous runs, and the push of one version more.
func DefaultLoraServing() LoraServing { return LoraServing{MaxLoras: 6, MaxCPULoras: 12} }

// loraRanks are the values that vLLM allows for --max-lora-rank.
var loraRanks = []int{1, 8, 16, 32, 64, 128, 256, 320, 512}

func (l LoraServing) validate(op string) error {
	switch most := loraRanks[len(loraRanks)-1]; {
	case l.Rank < 0 || l.Rank > most:
		return milepost.E(op, milepost.KindInvalid, "an adapter of rank %d is more than vLLM takes; trainer.lora.rank must be at most %d", l.Rank, most)
	case l.MaxLoras < 1 || l.MaxCPULoras < l.MaxLoras:
		return milepost.E(op, milepost.KindInvalid, "lora.max_loras is %d and lora.max_cpu_loras %d; the first must be at least 1, the second at least the first", l.MaxLoras, l.MaxCPULoras)
	}
	return nil
}

// argv are the flags of a server that takes adapters.
func (l LoraServing) argv() []string {
	if l.Rank == 0 {
		return nil
	}
	rank := 0
	for _, rank = range loraRanks {
		if rank >= l.Rank {
			break
		}
	}
	return []string{"--enable-lora", "--max-lora-rank", strconv.Itoa(rank), "--max-loras", strconv.Itoa(l.MaxLoras), "--max-cpu-loras", strconv.Itoa(l.MaxCPULoras)}
}

// AdapterName is what the adapter of a version is called on a server of the base model; version 0 is the base itself, for
// an adapter that was not trained yet changes nothing.
func AdapterName(base string, version int32) string {
	if version == 0 {
		return base
	}
	return base + "-" + FormatVersion(version)
}

// adapterVersion is the inverse of AdapterName for names of adapters; false for any other name.
func adapterVersion(base, name string) (int32, bool) {
	rest, ok := strings.CutPrefix(name, base+"-v")
	v, err := strconv.ParseInt(rest, 10, 32)
	return int32(v), ok && err == nil && v > 0
}

// Adapter is a client for the same server whose requests name the adapter of a version. All tokens of their answers are of
// this version whatever the server was told since: it applies the adapter that a request named to its end. Where the
// adapter is not there any more (the server was started anew, or unloaded it) sampling fails with KindUnavailable, so that
// the request goes to a place that has the present one.
func (c *Client) Adapter(version int32) *Client {
	named := *c
	named.model, named.adapter = AdapterName(c.model, version), &version
	return &named
}

// LoadAdapter makes the server load the adapter of a version from a directory that it must see under the same path. The
// server goes on sampling. Kinds: KindInvalid where one of that name is loaded, or the directory holds none.
func (c *Client) LoadAdapter(ctx context.Context, version int32, dir string) error {
	in := struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}{AdapterName(c.model, version), dir}
	return c.do(ctx, request{op: "vllm: load adapter", method: http.MethodPost, path: "/v1/load_lora_adapter", in: in})
}

// UnloadAdapter takes the name of an adapter away; requests under way that named it keep it to their end. KindNotFound
// where there is none.
func (c *Client) UnloadAdapter(ctx context.Context, version int32) error {
	in := struct {
		Name string `json:"lora_name"`
	}{AdapterName(c.model, version)}
	return c.do(ctx, request{op: "vllm: unload adapter", method: http.MethodPost, path: "/v1/unload_lora_adapter", in: in})
}

// Adapters lists the versions whose adapters are loaded, in the server's order.
func (c *Client) Adapters(ctx context.Context) ([]int32, error) {
	var out struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.do(ctx, request{op: "vllm: list adapters", method: http.MethodGet, path: "/v1/models", out: &out}); err != nil {
		return nil, err
	}
	var versions []int32
	for _, m := range out.Data {
		if v, ok := adapterVersion(c.model, m.ID); ok {
			versions = append(versions, v)
		}
	}
	return versions, nil
}

// missing turns the answer that an adapter is not there into KindUnavailable.
func (c *Client) missing(op string, err error) error {
	if c.adapter != nil && *c.adapter > 0 && milepost.KindOf(err) == milepost.KindNotFound {
		return milepost.E(op, milepost.KindUnavailable, "%w", err)
	}
	return err
}

// own gives the tokens of an answer the version of the adapter that sampled them, where the client names one.
func (c *Client) own(g *Generation) bool {
	if c.adapter == nil {
		return false
	}
	g.Newest, g.Versions = *c.adapter, make([]int32, len(g.IDs))
	for i := range g.Versions {
		g.Versions[i] = *c.adapter
	}
	return true
}
