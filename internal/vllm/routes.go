package vllm

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/milepost-rl/milepost"
)

// FlagRoutes makes a server answer with the experts that each token was routed to; it needs prefix caching and a mixture of
// experts.
const FlagRoutes = "--enable-return-routed-experts"

// checkExperts fails with KindInvalid where the model in dir has no experts that could be routed to.
func checkExperts(op, dir string) error {
	path := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return milepost.Wrap(op, milepost.KindNotFound, err)
	}
	type counts struct {
		A int `json:"num_experts"`
		B int `json:"num_local_experts"`
		C int `json:"n_routed_experts"`
	}
	var config struct {
		counts
		Text counts `json:"text_config"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return milepost.E(op, milepost.KindCorrupt, "%s: %w", path, err)
	}
	if max(config.A, config.B, config.C, config.Text.A, config.Text.B, config.Text.C) < 1 {
		return milepost.E(op, milepost.KindInvalid, "trainer.routing_replay is true, and %s names no experts (num_experts, num_local_experts or n_routed_experts); allowed: false for a model that is no mixture of experts", path)
	}
	return nil
}

// decodeRoutes reads the experts of an answer, a NumPy array file of [tokens][layers][top_k] in base64, and checks that they
// are those of want tokens.
func decodeRoutes(op, server, text string, want int) (*milepost.Routes, error) {
	if text == "" {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: the answer has no routed_experts; start the server with %s, or set trainer.routing_replay to false", server, FlagRoutes)
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: routed_experts: %w", server, err)
	}
	tokens, routes, err := readNPY(data)
	if err == nil {
		err = routes.Check(want)
	}
	if err == nil && (tokens != want || routes.Tokens() != want) {
		err = fmt.Errorf("experts of %d tokens, want %d", tokens, want)
	}
	if err == nil {
		err = distinct(routes)
	}
	if err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: routed_experts: %w", server, err)
	}
	return routes, nil
}

// distinct refuses a token that goes to one expert twice in a layer, which no router does and the trainer would refuse with the
// whole batch. A layer without experts has zeros.
func distinct(r *milepost.Routes) error {
	layer := r.TopK * r.Size
	none := make([]byte, layer)
	for at := 0; at < len(r.IDs); at += layer {
		chosen := r.IDs[at : at+layer]
		if r.TopK == 1 || bytes.Equal(chosen, none) {
			continue
		}
		for i := r.Size; i < layer; i += r.Size {
			for j := 0; j < i; j += r.Size {
				if bytes.Equal(chosen[i:i+r.Size], chosen[j:j+r.Size]) {
					return fmt.Errorf("token %d goes to one expert of layer %d twice", at/layer/r.Layers, at/layer%r.Layers)
				}
			}
		}
	}
	return nil
}

// npyHeader is the text before the bytes of an array; vLLM sends no other kind of array.
var npyHeader = regexp.MustCompile(`^\{'descr': '(?:\|u(1)|<u(2))', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\), \}\s*$`)

// readNPY reads a NumPy array file (version 1) of three dimensions of unsigned bytes or 16-bit numbers.
func readNPY(data []byte) (tokens int, r *milepost.Routes, err error) {
	const magic = "\x93NUMPY\x01\x00"
	if len(data) < 10 || !bytes.HasPrefix(data, []byte(magic)) {
		return 0, nil, fmt.Errorf("no NumPy array file of version 1")
	}
	start := 10 + int(binary.LittleEndian.Uint16(data[8:]))
	if start > len(data) {
		return 0, nil, fmt.Errorf("the header of the NumPy array is cut off")
	}
	m := npyHeader.FindSubmatch(data[10:start])
	if m == nil {
		return 0, nil, fmt.Errorf("a NumPy array %q; want three dimensions of |u1 or <u2", data[10:start])
	}
	var n [3]int
	for i := range n {
		if n[i], err = strconv.Atoi(string(m[3+i])); err != nil {
			return 0, nil, err
		}
	}
	return n[0], &milepost.Routes{Layers: n[1], TopK: n[2], Size: 1 + len(m[2]), IDs: data[start:]}, nil
}
