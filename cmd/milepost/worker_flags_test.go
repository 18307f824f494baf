package main

import (
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost/shadow"
)

// Half of a connection in the configuration and half in flags is one connection.
func TestFlagsOverTheConfiguredConnection(t *testing.T) {
	for _, c := range []struct {
		args []string
		cfg  shadow.ConnectConfig
		want shadow.ConnectConfig
	}{
		{[]string{"--token-file", "tok"}, shadow.ConnectConfig{URL: "nats://h", Timeout: time.Minute}, shadow.ConnectConfig{URL: "nats://h", TokenFile: "tok", Timeout: time.Minute}},
		{[]string{"--nats", "nats://g"}, shadow.ConnectConfig{TokenFile: "tok"}, shadow.ConnectConfig{URL: "nats://g", TokenFile: "tok"}},
		{[]string{"--nats", "nats://g", "--connect-timeout", "3s"}, shadow.ConnectConfig{}, shadow.ConnectConfig{URL: "nats://g", Name: shadow.DefaultConnect().Name, Timeout: 3 * time.Second}},
	} {
		var f natsFlags
		cmd := &cobra.Command{}
		f.register(cmd)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		if got, err := f.over(cmd, c.cfg); err != nil || got != c.want {
			t.Errorf("%v over %+v: %+v, %v", c.args, c.cfg, got, err)
		}
	}
	var f natsFlags
	cmd := &cobra.Command{}
	f.register(cmd)
	if _, err := f.over(cmd, shadow.ConnectConfig{TokenFile: "tok"}); err == nil {
		t.Error("no server was named, and nothing was said")
	}
}
