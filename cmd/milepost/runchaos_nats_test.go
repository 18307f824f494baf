package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost/shadow"
)

// natsServerEnv makes the test binary be a NATS server: "PORT DIR".
const natsServerEnv = "MILEPOST_TEST_IS_NATS"

// natsMain is a NATS server that ends with the process.
func natsMain(text string) {
	cfg := shadow.DefaultServer()
	cfg.Listen = true
	if _, err := fmt.Sscan(text, &cfg.Port, &cfg.Dir); err != nil {
		panic(err)
	}
	if _, err := shadow.StartServer(cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

// natsProcess is a NATS server in a process of its own, at a port and with a store that outlive it.
type natsProcess struct {
	t    *testing.T // with which it ends; not that of a subtest
	mark string
	port int
	dir  string
	p    *process
}

func startNATS(t *testing.T, mark, dir string) *natsProcess {
	t.Helper()
	n := &natsProcess{t: t, mark: mark, port: freePort(t), dir: dir}
	n.start()
	return n
}

func (n *natsProcess) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.port) }

func (n *natsProcess) start() {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), commandEnv+"="+n.mark, fmt.Sprintf("%s=%d %s", natsServerEnv, n.port, n.dir))
	n.p = startCommand(n.t, cmd)
	n.p.until("NATS", 30*time.Second, func() bool {
		c, err := nats.Connect(n.url(), nats.Timeout(time.Second))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// bounce kills the server and starts it again two seconds later.
func (n *natsProcess) bounce() {
	n.t.Helper()
	n.p.kill()
	<-n.p.done
	time.Sleep(2 * time.Second)
	n.start()
}
