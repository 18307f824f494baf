package supervise

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// VLLM is the process that serves a model: cfg with its port chosen (vllm.ServerConfig.WithPort), the directory of the
// pinned server environment, and where to log. It is ready when /health is content, which on two cores takes 85 to
// 100 s, nearly all of it imports.
func VLLM(name string, cfg vllm.ServerConfig, environment, log string) (Spec, error) {
	if err := cfg.Validate(); err != nil {
		return Spec{}, err
	}
	client, err := vllm.New(vllm.Config{URL: cfg.Addresses()[0]})
	if err != nil {
		return Spec{}, err
	}
	return Spec{
		Name: name, Argv: cfg.Argv(environment), Env: cfg.Environ(), Log: log,
		Ports: []string{net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port))},
		Check: cfg.CheckModel,
		Ready: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return client.Health(ctx)
		},
		Grace: 20 * time.Second,
	}, nil
}
