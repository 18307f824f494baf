package vllm

import (
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/milepost-rl/milepost"
)

func TestTransferRoutes(t *testing.T) {
	var asked []string
	size := `{"world_size": 4}`
	c := serve(t, func(w http.ResponseWriter, path, body string) {
		asked = append(asked, path+" "+body)
		_, _ = io.WriteString(w, size)
	})
	if n, err := c.WorldSize(t.Context()); n != 4 || err != nil {
		t.Errorf("world size %d, %v", n, err)
	}
	plan := TransferPlan{Names: []string{"w"}, DTypes: []string{"float32"}, Shapes: [][]int64{{2, 3}}}
	for _, err := range []error{
		c.InitTransfer(t.Context(), map[string]int{"rank_offset": 1}), c.StartUpdate(t.Context()), c.UpdateWeights(t.Context(), plan), c.FinishUpdate(t.Context()),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"/get_world_size ", `/init_weight_transfer_engine {"init_info":{"rank_offset":1}}`, "/start_weight_update ",
		`/update_weights {"update_info":{"names":["w"],"dtype_names":["float32"],"shapes":[[2,3]]}}`, "/finish_weight_update {}",
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q\nwant  %q", asked, want)
	}
	size = `{}`
	if _, err := c.WorldSize(t.Context()); milepost.KindOf(err) != milepost.KindCorrupt {
		t.Errorf("no world size: %v", err)
	}
}

// TestServerGetsThePlugin: the backend is told, and Milepost's plugin stands before what PYTHONPATH holds already.
func TestServerGetsThePlugin(t *testing.T) {
	t.Setenv("PYTHONPATH", "/theirs")
	cfg := DefaultServerConfig()
	cfg.Model, cfg.Transfer, cfg.Plugins = "/m", "gloo", "/ours"
	argv := cfg.Argv("/env")
	if i := slices.Index(argv, "--weight-transfer-config"); i < 0 || argv[i+1] != `{"backend":"gloo"}` {
		t.Errorf("command %v", argv)
	}
	if got := cfg.Environ()["PYTHONPATH"]; got != "/ours:/theirs" {
		t.Errorf("PYTHONPATH %q", got)
	}
	cfg.Env = map[string]string{"PYTHONPATH": "/set"}
	if got := cfg.Environ()["PYTHONPATH"]; got != "/ours:/set" {
		t.Errorf("PYTHONPATH %q where env sets one", got)
	}
	cfg.Args = []string{"--weight-transfer-config={}"}
	if err := cfg.Validate(); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("args may not set what weights.method does: %v", err)
	}
}
