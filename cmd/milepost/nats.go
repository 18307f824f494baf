package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
)

// natsServer are the settings of a messenger of its own, for clusters where no nats-server is installed.
type natsServer struct {
	name, dir, listen, http, cluster, tokenFile string
	routes                                      []string
	store                                       int64
}

func newNATSCommand() *cobra.Command {
	var n natsServer
	c := &cobra.Command{
		Use:   "nats --name NAME --dir DIR --listen HOST:PORT",
		Short: "Serve the messenger (NATS with JetStream), alone or as one of a cluster, until interrupted",
		Long: "Serves NATS with JetStream for runs (probes.connect.url) and workers (--nats), as nats-server would: launch starts it.\n" +
			"The token opens it to clients and to the other servers of the cluster; nothing is encrypted, so use a private network, or\n" +
			"nats-server with certificates.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			opts, err := n.options()
			if err != nil {
				return err
			}
			release, err := lockDir(n.dir)
			if err != nil {
				return err
			}
			defer func() { _ = release() }()
			s, err := server.NewServer(opts)
			if err != nil {
				return milepost.E("nats", milepost.KindInvalid, "%w", err)
			}
			s.ConfigureLogger()
			s.Start()
			return waitNATS(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&n.name, "name", "", "name of this server, unique in its cluster")
	f.StringVar(&n.dir, "dir", "", "folder of its files")
	f.StringVar(&n.listen, "listen", "", "HOST:PORT for clients")
	f.StringVar(&n.http, "http", "", "HOST:PORT that serves /healthz and its figures; \"\" = none")
	f.StringVar(&n.cluster, "cluster", "", "HOST:PORT for the other servers of the cluster; \"\" = none")
	f.StringSliceVar(&n.routes, "routes", nil, "HOST:PORT of all servers of the cluster, separated by commas")
	f.StringVar(&n.tokenFile, "token-file", "", "file that holds the token; without it anyone may connect")
	f.Int64Var(&n.store, "store", 8<<30, "bytes that it may take on disk")
	return c
}

// waitNATS returns when the context ends, after the server has given its files back, or when the server ends.
func waitNATS(ctx context.Context, s *server.Server) error {
	if !s.ReadyForConnections(2 * time.Minute) {
		s.Shutdown()
		return milepost.E("nats", milepost.KindUnavailable, "the server takes no connections")
	}
	ended := make(chan struct{})
	go func() { s.WaitForShutdown(); close(ended) }()
	select {
	case <-ctx.Done():
		s.Shutdown()
		<-ended
		return nil
	case <-ended:
		return milepost.E("nats", milepost.KindUnavailable, "the server ended")
	}
}

func (n natsServer) options() (*server.Options, error) {
	const op = "nats"
	if n.name == "" || n.dir == "" {
		return nil, &usageError{fmt.Errorf("--name and --dir must be given")}
	}
	token := ""
	if n.tokenFile != "" {
		b, err := os.ReadFile(n.tokenFile)
		if err != nil {
			return nil, milepost.E(op, milepost.KindNotFound, "--token-file: %w", err)
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return nil, milepost.E(op, milepost.KindInvalid, "--token-file %s is empty", n.tokenFile)
		}
	}
	o := &server.Options{
		ServerName: n.name, JetStream: true, StoreDir: filepath.Clean(n.dir), JetStreamMaxStore: n.store, Authorization: token, NoSigs: true,
	}
	var err error
	if o.Host, o.Port, err = hostPort("--listen", n.listen); err != nil {
		return nil, err
	}
	if n.http != "" {
		if o.HTTPHost, o.HTTPPort, err = hostPort("--http", n.http); err != nil {
			return nil, err
		}
	}
	if n.cluster == "" {
		return o, nil
	}
	o.Cluster = server.ClusterOpts{Name: "milepost", Username: "milepost", Password: token}
	if o.Cluster.Host, o.Cluster.Port, err = hostPort("--cluster", n.cluster); err != nil {
		return nil, err
	}
	for _, r := range n.routes {
		if _, _, err := hostPort("--routes", r); err != nil {
			return nil, err
		}
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: r, User: url.UserPassword("milepost", token)})
	}
	return o, nil
}
