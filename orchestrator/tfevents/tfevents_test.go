package tfevents_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/tfevents"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// reader prints what TensorBoard itself has read after each line of standard input, as {tag: [[step, value, time], …]}. It
// stays open between two readings, as TensorBoard does while a run goes on.
const reader = `import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
for line in sys.stdin:
    a.Reload()
    print(json.dumps({t: [[e.step, e.value, e.wall_time] for e in a.Scalars(t)] for t in a.Tags()["scalars"]}), flush=True)
`

// board is TensorBoard, reading a folder.
type board struct {
	t   *testing.T
	in  *json.Encoder
	out *json.Decoder
}

func openBoard(t *testing.T, dir string) *board {
	t.Helper()
	env, err := trainerbridge.Environment(trainerbridge.EnvTrackers)
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(filepath.Join(env, "bin", "python"), "-W", "ignore", "-c", reader, dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the reader: %v", err)
		}
	})
	return &board{t, json.NewEncoder(in), json.NewDecoder(out)}
}

func (b *board) read() map[string][][3]float64 {
	b.t.Helper()
	var got map[string][][3]float64
	if err := b.in.Encode("read"); err != nil {
		b.t.Fatal(err)
	}
	if err := b.out.Decode(&got); err != nil {
		b.t.Fatal(err)
	}
	return got
}

func (b *board) wants(want map[string][][3]float64) {
	b.t.Helper()
	got := b.read()
	if len(got) != len(want) {
		b.t.Errorf("names %v, want %d", got, len(want))
	}
	for name, points := range want {
		if !slices.Equal(got[name], points) {
			b.t.Errorf("%s: TensorBoard reads %v, want %v", name, got[name], points)
		}
	}
}

// TestTensorBoardReads: TensorBoard reads each value once, exactly as a float32, while the file grows, over a torn end, and
// after a resumed run made the file anew.
func TestTensorBoardReads(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tensorboard")
	at := time.Unix(1700000000, 250e6)
	const wall = 1700000000.25
	point := func(step int64, values map[string]float64) tfevents.Point {
		return tfevents.Point{Time: at, Step: step, Values: values}
	}
	w, err := tfevents.Rewrite(dir, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := openBoard(t, dir)
	long := strings.Repeat("é", 100)
	for _, p := range []tfevents.Point{
		point(0, map[string]float64{"push/version": 0}),
		point(1, map[string]float64{"update/loss": -.1, "batch/reward": 1, long: 1e30}),
		point(1, map[string]float64{"push/version": 1}),
		point(2, map[string]float64{"update/loss": 1e-9}),
	} {
		if err := w.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	f32 := func(v float64) float64 { return float64(float32(v)) }
	want := map[string][][3]float64{
		"push/version": {{0, 0, wall}, {1, 1, wall}}, "batch/reward": {{1, 1, wall}}, long: {{1, f32(1e30), wall}},
		"update/loss": {{1, f32(-.1), wall}, {2, f32(1e-9), wall}},
	}
	b.wants(want)

	// What would put a step twice is refused and leaves the file as it was.
	for _, p := range []tfevents.Point{point(2, map[string]float64{"update/loss": 3, "new": 1}), point(1, map[string]float64{"batch/reward": 2})} {
		if err := w.Add(p); milepost.KindOf(err) != milepost.KindConflict || w.Follows(p) {
			t.Errorf("%+v: %v", p, err)
		}
	}

	// A kill in the middle of a write; then the resumed run, which did update 2 again.
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], int64(len(whole)-3)); err != nil {
		t.Fatal(err)
	}
	torn := openBoard(t, dir)
	if got := torn.read()["update/loss"]; len(got) != 1 || got[0][0] != 1 {
		t.Errorf("with a torn end TensorBoard reads %v", got)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = tfevents.Rewrite(dir, at, []tfevents.Point{
		point(2, map[string]float64{"update/loss": 4, "update/lr": 1}), point(1, map[string]float64{"update/loss": -.1, "batch/reward": 1}),
		point(2, map[string]float64{"update/loss": 5}),
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(point(3, map[string]float64{"update/loss": 6})); err != nil {
		t.Fatal(err)
	}
	now, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(now) != 2 || now[1] <= files[0] { // the old one is empty
		t.Fatalf("%v behind %v: %v", now, files, err)
	}
	for _, reader := range []*board{b, torn, openBoard(t, dir)} { // those that have read the old file drop it
		got := reader.read()
		if loss := got["update/loss"]; !slices.Equal(loss, [][3]float64{{1, f32(-.1), wall}, {2, 5, wall}, {3, 6, wall}}) || len(got["update/lr"]) != 1 || len(got["batch/reward"]) != 1 {
			t.Errorf("after the resume TensorBoard reads %v", got)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoFolder: an error says where, and leaves nothing half-written.
func TestNoFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tfevents.Rewrite(filepath.Join(dir, "file", "x"), time.Unix(1, 0), nil); milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "file") {
		t.Error(err)
	}
}
