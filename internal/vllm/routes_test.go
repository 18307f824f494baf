package vllm

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

// npy is a NumPy array file in base64, as vLLM answers.
func npy(descr, shape string, body []byte) string {
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	out := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header)))
	return base64.StdEncoding.EncodeToString(append(append(out, header...), body...))
}

func TestRoutesOfAnAnswer(t *testing.T) {
	body := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for _, c := range []struct {
		text string
		want int
		good *milepost.Routes
		kind milepost.Kind
		say  string
	}{
		{npy("|u1", "(3, 2, 2)", body), 3, &milepost.Routes{Layers: 2, TopK: 2, Size: 1, IDs: body}, "", ""},
		{npy("<u2", "(3, 1, 2)", body), 3, &milepost.Routes{Layers: 1, TopK: 2, Size: 2, IDs: body}, "", ""},
		{npy("|u1", "(3, 2, 2)", []byte{0, 0, 2, 3, 0, 0, 6, 7, 0, 0, 10, 11}), 3, &milepost.Routes{Layers: 2, TopK: 2, Size: 1, IDs: []byte{0, 0, 2, 3, 0, 0, 6, 7, 0, 0, 10, 11}}, "", ""}, // a dense layer
		{npy("|u1", "(3, 2, 2)", []byte{0, 1, 2, 3, 4, 5, 7, 7, 8, 9, 10, 11}), 3, nil, milepost.KindCorrupt, "token 1 goes to one expert of layer 1 twice"},
		{npy("<u2", "(3, 1, 2)", []byte{0, 1, 1, 0, 4, 5, 6, 7, 8, 9, 8, 9}), 3, nil, milepost.KindCorrupt, "token 2 goes to one expert of layer 0 twice"},
		{npy("|u1", "(0, 2, 2)", nil), 0, &milepost.Routes{Layers: 2, TopK: 2, Size: 1}, "", ""},
		{"", 3, nil, milepost.KindInvalid, "start the server with --enable-return-routed-experts"},
		{"?", 3, nil, milepost.KindCorrupt, "illegal base64"},
		{npy("|u1", "(3, 2, 2)", body), 4, nil, milepost.KindCorrupt, "experts of 3 tokens, want 4"},
		{npy("|u1", "(3, 2, 2)", body[:8]), 3, nil, milepost.KindCorrupt, "experts of 3 tokens, want 3"},
		{npy("|u1", "(3, 2, 2)", append(body, 1)), 4, nil, milepost.KindCorrupt, "13 bytes"},
		{npy("<i4", "(3, 1, 1)", body), 3, nil, milepost.KindCorrupt, "want three dimensions"},
		{npy("|u1", "(3, 4)", body), 3, nil, milepost.KindCorrupt, "want three dimensions"},
		{base64.StdEncoding.EncodeToString([]byte("\x93NUMPY\x01\x00\xff\xff")), 3, nil, milepost.KindCorrupt, "cut off"},
		{base64.StdEncoding.EncodeToString([]byte("PK")), 3, nil, milepost.KindCorrupt, "no NumPy array"},
	} {
		got, err := decodeRoutes("op", "server", c.text, c.want)
		if c.good != nil {
			if err != nil || fmt.Sprint(*got) != fmt.Sprint(*c.good) {
				t.Errorf("%q: %v, %v", c.say, got, err)
			}
		} else if milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.say) {
			t.Errorf("error %v, want %s %q", err, c.kind, c.say)
		}
	}
}

// TestATurnAsksForTheRoutesItLacks holds both ways of sampling to what they send and to the number of tokens they accept.
func TestATurnAsksForTheRoutesItLacks(t *testing.T) {
	var asked float64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/weight_info" {
			fmt.Fprint(w, `{"weight_version":"v1"}`)
			return
		}
		var in map[string]any
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		if nested, ok := in["sampling_params"].(map[string]any); ok {
			in = nested
		}
		asked, _ = in["routed_experts_prompt_start"].(float64)
		routes := npy("|u1", "(4, 1, 1)", []byte{7, 6, 5, 4})
		fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","token_ids":[8,9],"text":"x","routed_experts":%q,"weight_versions":[{"version":"v1","start":0,"end":2}],
			"logprobs":{"content":[{"logprob":-1},{"logprob":-2}],"token_logprobs":[-1,-2]}}]}`, routes)
	}))
	defer server.Close()
	c, err := New(Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	prompt := []int32{1, 2, 3, 4, 5}
	for name, sample := range map[string]func(context.Context, string, []int32, Params) (*Generation, error){"generate": c.Generate, "completions": c.Complete} {
		g, err := sample(t.Context(), "s", prompt, Params{MaxTokens: 2, Routes: true, RoutesFrom: 2})
		if err != nil || asked != 2 || string(g.Routes.IDs) != "\x07\x06\x05\x04" {
			t.Errorf("%s: %+v, asked from %v: %v", name, g, asked, err)
		}
		if _, err = sample(t.Context(), "s", prompt, Params{MaxTokens: 2, Routes: true}); milepost.KindOf(err) != milepost.KindCorrupt {
			t.Errorf("%s: four rows for six tokens gave %v", name, err)
		}
		if g, err = sample(t.Context(), "s", prompt, Params{MaxTokens: 2}); err != nil || g.Routes != nil {
			t.Errorf("%s: routes that nobody asked for: %v, %v", name, g, err)
		}
	}
}

func TestRoutesNeedExperts(t *testing.T) {
	dir := t.TempDir()
	for config, bad := range map[string]bool{
		`{"num_experts":128}`: false, `{"num_local_experts":8}`: false, `{"text_config":{"n_routed_experts":64}}`: false,
		`{"hidden_size":64}`: true, `{"num_experts":0}`: true,
	} {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := checkExperts("op", dir); (milepost.KindOf(err) == milepost.KindInvalid) != bad {
			t.Errorf("%s: %v", config, err)
		}
	}
	c := DefaultServerConfig()
	c.Routes, c.Model = true, "m"
	if argv := strings.Join(c.Argv("env"), " "); !strings.Contains(argv, FlagRoutes) {
		t.Errorf("%s lacks %s", argv, FlagRoutes)
	}
}
