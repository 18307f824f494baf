package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	"github.com/milepost-rl/milepost/rollout/policy"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// reapGrace is how long a server of an earlier start has to end by itself.
const reapGrace = 15 * time.Second

// identityFiles matches what a run keeps of its replicas below its logs.
const identityFiles = "vllm-*.json"

// startReplicas starts the replicas of this machine, or adopts those of an earlier epoch that still run: a server that was
// started for such a model and with such settings is taken over at its port, any other is ended first.
func (s *serving) startReplicas(ctx context.Context, server vllm.ServerConfig) error {
	environment := ""
	if server.Replicas > 0 {
		var err error
		if environment, err = pinnedServer(&server); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return milepost.Wrap("start server", milepost.KindUnavailable, err)
	}
	services := make([]*supervise.Service, server.Replicas)
	for i := range services {
		r := &replica{name: fmt.Sprintf("vllm-%d", i), started: true, served: policy.NoVersion}
		one, err := server.Replica(i, runtime.NumCPU(), os.Getenv("CUDA_VISIBLE_DEVICES"))
		if err != nil {
			return err
		}
		if services[i], err = s.service(ctx, r, one, environment); err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	if err := s.reapOthers(ctx); err != nil {
		return err
	}
	for _, service := range services {
		s.work.Go(func() {
			if err := service.Run(s.ctx); err != nil && s.ctx.Err() != nil { // else EventGaveUp has told
				s.mu.Lock()
				defer s.mu.Unlock()
				s.endErr = errors.Join(s.endErr, err)
			}
		})
	}
	return nil
}

// pinnedServer is the pinned environment that servers without a command of their own start from, with Milepost's plugin for
// them: the gloo end of a transfer, and what the CPU build lacks for mixtures of experts. "" where they have a command.
func pinnedServer(server *vllm.ServerConfig) (environment string, err error) {
	if len(server.Command) > 0 {
		return "", nil
	}
	if server.Plugins, err = trainerbridge.PythonPath(); err != nil {
		return "", err
	}
	return trainerbridge.Environment(trainerbridge.EnvServer)
}

// reapServer ends the server that a start before this one left behind, where there is one.
func reapServer(ctx context.Context, old *serverIdentity) error {
	if old == nil {
		return nil
	}
	_, err := supervise.Reap(ctx, []supervise.Identity{old.Identity}, reapGrace)
	return err
}

// service prepares the process of a replica.
func (s *serving) service(ctx context.Context, r *replica, server vllm.ServerConfig, environment string) (*supervise.Service, error) {
	serves, err := servesWhat(server, environment)
	if err != nil {
		return nil, err
	}
	old := readIdentity(s.identityFile(r))
	adopt := old != nil && old.Serves == serves && old.Identity.Alive()
	if adopt {
		server.Port = old.Port
	} else {
		if err := reapServer(ctx, old); err != nil {
			return nil, err
		}
		if server, err = server.WithPort(); err != nil {
			return nil, err
		}
	}
	r.url = server.Addresses()[0]
	if slices.ContainsFunc(s.replicas, func(o *replica) bool { return o.url == r.url }) {
		return nil, milepost.E("start server", milepost.KindConflict, "two replicas at %s: the system gave one port out twice; start again", r.url)
	}
	spec, err := supervise.VLLM(r.name, server, environment, filepath.Join(s.dir, r.name+".log"))
	if err != nil {
		return nil, err
	}
	service := &supervise.Service{Spec: spec, Restart: supervise.DefaultRestart(), Notify: func(e supervise.Event) { s.notify(r, server.Port, serves, e) }}
	if adopt {
		service.Adopt = &old.Identity
		return service, nil
	}
	return service, spec.Startable()
}

// reapOthers ends servers that an earlier epoch started for more replicas than there are now.
func (s *serving) reapOthers(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(s.dir, identityFiles))
	if err != nil {
		return milepost.Wrap("start server", milepost.KindInvalid, err)
	}
	for _, file := range files {
		if slices.ContainsFunc(s.replicas, func(r *replica) bool { return s.identityFile(r) == file }) {
			continue
		}
		if err := reapServer(ctx, readIdentity(file)); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return milepost.Wrap("start server", milepost.KindUnavailable, err)
		}
	}
	return nil
}

// notify keeps a replica and the stored identity in step with its process.
func (s *serving) notify(r *replica, port int, serves string, e supervise.Event) {
	switch e.Kind {
	case supervise.EventStarted, supervise.EventAdopted:
		if e.Kind == supervise.EventAdopted {
			s.say(fmt.Sprintf("%s of the run's last start still serves (process %d): adopted", s.label(r), e.Identity.PID))
		}
		if err := writeIdentity(s.identityFile(r), serverIdentity{Identity: e.Identity, Port: port, Serves: serves}); err != nil {
			s.say(fmt.Sprintf("the server's identity could not be stored, so a resumed run cannot adopt it: %v", err))
		}
	case supervise.EventReady:
		s.ready(r)
	case supervise.EventExited:
		if e.Exit.Asked && s.ctx.Err() != nil {
			return
		}
		s.down(r)
		s.say(fmt.Sprintf("%s ended (%s); starting it again in %v", s.label(r), e.Exit.Reason, e.Wait.Round(time.Millisecond)))
	case supervise.EventGaveUp:
		s.down(r)
		s.lose(r, milepost.E("serve", milepost.KindUnavailable, "%s keeps failing: %w", s.label(r), e.Err))
	}
}

// forget removes the identities of the replicas that were stopped.
func (s *serving) forget() error {
	var err error
	for _, r := range s.replicas {
		if r.started {
			err = errors.Join(err, os.RemoveAll(s.identityFile(r)))
		}
	}
	return err
}

func (s *serving) identityFile(r *replica) string { return filepath.Join(s.dir, r.name+".json") }
