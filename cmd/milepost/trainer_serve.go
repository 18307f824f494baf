package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
)

func newTrainerServeCommand() *cobra.Command {
	var flags configFlags
	var listen, master string
	var nodes, node int
	c := &cobra.Command{
		Use:   "serve -c FILE --listen HOST:PORT",
		Short: "Serve a trainer for a run elsewhere (trainer.address), alone or as one of several nodes",
		Long: "Becomes the trainer process: trainer.ranks processes on each of --nodes machines, which torchrun brings together at\n" +
			"--master; node 0 listens. It has neither key nor encryption: listen on a private network. All nodes and the run see the\n" +
			"same file system.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if _, _, ok := splitPort(listen); !ok {
				return &usageError{fmt.Errorf("--listen is %q; allowed: HOST:PORT, port 0 (any free one) to 65535", listen)}
			}
			if nodes < 1 || node < 0 || node >= nodes {
				return &usageError{fmt.Errorf("--node is %d of --nodes %d; allowed: 0 to nodes - 1", node, nodes)}
			}
			torchrun := []string{"--standalone"}
			if nodes > 1 {
				host, port, ok := splitPort(master)
				if !ok || host == "" || port == 0 {
					return &usageError{fmt.Errorf("--master is %q; allowed with several nodes: HOST:PORT of the first", master)}
				}
				torchrun = []string{"--nnodes", strconv.Itoa(nodes), "--node-rank", strconv.Itoa(node), "--master-addr", host, "--master-port", strconv.Itoa(port)}
			}
			argv, env, err := trainerCommand(cfg.Trainer, torchrun, "--listen", listen)
			if err != nil {
				return err
			}
			environ := os.Environ()
			for k, v := range env {
				environ = append(environ, k+"="+v)
			}
			return milepost.Wrap("trainer serve", milepost.KindUnavailable, syscall.Exec(argv[0], argv, environ))
		},
	}
	flags.register(c, "")
	c.Flags().StringVar(&listen, "listen", "", "HOST:PORT of the first node; port 0 = any free one")
	c.Flags().IntVar(&nodes, "nodes", 1, "machines")
	c.Flags().IntVar(&node, "node", 0, "which of them this is, from 0")
	c.Flags().StringVar(&master, "master", "", "HOST:PORT at which the nodes meet, on the first")
	return c
}
