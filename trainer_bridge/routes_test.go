package trainerbridge_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// TestRoutesReachThePythonSide reads a batch that Go wrote with the trainer's own reader: every expert at its token, layer and
// place, of one byte and of two.
func TestRoutesReachThePythonSide(t *testing.T) {
	row := func(name string, tokens int, routes *milepost.Routes) trainerbridge.Row {
		return trainerbridge.Row{Episode: name, Tokens: make([]int32, tokens), Logprobs: make([]float32, tokens), Versions: make([]int32, tokens),
			Mask: make([]bool, tokens), Advantages: make([]float32, tokens), Routes: routes}
	}
	const read = `import json, sys
from milepost_trainer import batch
print(json.dumps([s.routes.tolist() for s in batch.load(*sys.argv[1:])]))`
	for size, ids := range map[int][]byte{1: {0, 1, 2, 3, 4, 5, 254, 255, 9, 8, 7, 6}, 2: {0, 1, 255, 0, 3, 1, 4, 0, 5, 0, 6, 0}} {
		shape := milepost.Routes{Layers: 3 - size + 1, TopK: 2, Size: size} // 3 layers of bytes, 2 of pairs of bytes
		whole, none := shape, shape
		whole.IDs = ids[:len(ids)/shape.Row()*shape.Row()]
		path := filepath.Join(t.TempDir(), "b.arrow")
		sum, err := trainerbridge.WriteBatch(path, []trainerbridge.Row{row("whole", whole.Tokens()+1, &whole), row("none", 2, &none)})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(python(t), "-c", read, path, sum)
		cmd.Env, cmd.Stderr = append(os.Environ(), "PYTHONPATH=python"), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var got [][][][]int
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		want := make([][][]int, whole.Tokens())
		for k, at := 0, 0; k < len(want); k++ {
			for range shape.Layers {
				chosen := make([]int, shape.TopK)
				for i := range chosen {
					chosen[i] = int(whole.IDs[at])
					if size == 2 {
						chosen[i] += int(whole.IDs[at+1]) << 8
					}
					at += size
				}
				want[k] = append(want[k], chosen)
			}
		}
		if len(got) != 2 || !reflect.DeepEqual(got[0], want) || len(got[1]) != 0 {
			t.Errorf("%d bytes an id: read %v, wrote %v and nothing", size, got, want)
		}
	}
}

// TestRoutesOfABatchAreOfOneShape: in all rows or in none.
func TestRoutesOfABatchAreOfOneShape(t *testing.T) {
	row := func(r *milepost.Routes) trainerbridge.Row {
		return trainerbridge.Row{Episode: "e", Tokens: []int32{1, 2}, Logprobs: make([]float32, 2), Versions: make([]int32, 2), Mask: make([]bool, 2), Advantages: make([]float32, 2), Routes: r}
	}
	good := &milepost.Routes{Layers: 1, TopK: 2, Size: 1, IDs: []byte{3, 4}}
	for name, rows := range map[string][]trainerbridge.Row{
		"a row without": {row(good), row(nil)},
		"another shape": {row(good), row(&milepost.Routes{Layers: 2, TopK: 1, Size: 1})},
		"too many":      {row(&milepost.Routes{Layers: 1, TopK: 1, Size: 1, IDs: make([]byte, 3)})},
		"half a token":  {row(&milepost.Routes{Layers: 1, TopK: 2, Size: 1, IDs: make([]byte, 3)})},
		"three bytes":   {row(&milepost.Routes{Layers: 1, TopK: 2, Size: 3})},
	} {
		if _, err := trainerbridge.WriteBatch(filepath.Join(t.TempDir(), "b.arrow"), rows); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
