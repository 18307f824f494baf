package orchestrator

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// scalar is one value of an event file.
type scalar struct {
	step  int64
	value float32
}

// fieldsOf splits a protocol buffer; fixed and varint fields become their number.
func fieldsOf(t *testing.T, b []byte, visit func(n protowire.Number, number uint64, bytes []byte)) {
	t.Helper()
	for len(b) > 0 {
		n, kind, used := protowire.ConsumeTag(b)
		if used < 0 {
			t.Fatal(protowire.ParseError(used))
		}
		b = b[used:]
		var number uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			number, used = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			number, used = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var v uint32
			v, used = protowire.ConsumeFixed32(b)
			number = uint64(v)
		default:
			bytes, used = protowire.ConsumeBytes(b)
		}
		if used < 0 {
			t.Fatal(protowire.ParseError(used))
		}
		b = b[used:]
		visit(n, number, bytes)
	}
}

// boardOf reads the event files of a run, in their order. That TensorBoard reads them so, tfevents tests.
func boardOf(t *testing.T, f *Folder) map[string][]scalar {
	t.Helper()
	out := map[string][]scalar{}
	files, err := filepath.Glob(f.Path("tensorboard", "*tfevents*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no event file in %s (%v)", f.Dir, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for len(b) > 0 {
			size := binary.LittleEndian.Uint64(b)
			var step int64
			fieldsOf(t, b[12:12+size], func(n protowire.Number, number uint64, summary []byte) {
				if n == 2 {
					step = int64(number)
				}
				if n != 5 {
					return
				}
				fieldsOf(t, summary, func(_ protowire.Number, _ uint64, value []byte) {
					var name string
					fieldsOf(t, value, func(n protowire.Number, number uint64, text []byte) {
						if n == 1 {
							name = string(text)
						} else {
							out[name] = append(out[name], scalar{step, math.Float32frombits(uint32(number))})
						}
					})
				})
			})
			b = b[12+size+4:]
		}
	}
	return out
}

// wantBoard is what the event files must hold: the last value of each name and update in metrics.jsonl, by update.
func wantBoard(t *testing.T, f *Folder) map[string][]scalar {
	t.Helper()
	lines, err := f.MetricsLines()
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]map[int]float64{}
	for _, l := range lines {
		for name, v := range l.Scalars() {
			if last[name] == nil {
				last[name] = map[int]float64{}
			}
			last[name][l.Update] = v
		}
	}
	out := map[string][]scalar{}
	for name, values := range last {
		for _, u := range slices.Sorted(maps.Keys(values)) {
			out[name] = append(out[name], scalar{int64(u), float32(values[u])})
		}
	}
	return out
}

// TestBoardAfterEveryCrash: however a run was interrupted, its event files end up with each step of each figure once, as
// metrics.jsonl has them.
func TestBoardAfterEveryCrash(t *testing.T) {
	for crash := 3; ; crash += 2 {
		dir := t.TempDir()
		r := newTestRun(t, dir, &world{crash: crash, started: map[string]int{}}, 3)
		failed := r.Run(context.Background())
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if failed == nil {
			break
		}
		r = newTestRun(t, dir, &world{started: map[string]int{}}, 3)
		if err := r.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		got, want := boardOf(t, r.folder), wantBoard(t, r.folder)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("crash at %d: the event files hold %v, want %v", crash, got, want)
		}
		for name, n := range map[string]int{"batch/reward_mean": 4, "update/loss": 4, "push/canary_gap_mean": 4, "validation/resolved_rate": 3, "heldout/resolved_rate": 2, "time/time_update_s": 4} {
			if len(got[name]) != n {
				t.Errorf("crash at %d: %s has %v, want %d steps", crash, name, got[name], n)
			}
		}
		if m, err := r.folder.Metrics(); err != nil || m[2]["graded"] != 0 {
			t.Errorf("an evaluation's figures are among those of the update: %v (%v)", m, err)
		}
	}
}

// TestMetricsTwice: an update that is made again, in one start or the next, shows once, by its later values, and whoever is
// told hears every line in order.
func TestMetricsTwice(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	var told []int
	open := func() *metricsLog {
		return &metricsLog{folder: f, now: time.Now, told: func(l MetricsLine) { told = append(told, l.Update) }}
	}
	l := open()
	for _, step := range []struct {
		update int
		loss   float64
		again  bool
	}{{1, 1, false}, {2, 2, false}, {2, 3, false}, {3, 4, false}, {3, 5, true}, {4, math.NaN(), false}, {4, 6, false}} {
		if step.again {
			if err := l.close(); err != nil {
				t.Fatal(err)
			}
			l = open()
		}
		if err := l.append(MetricsLine{Update: step.update, Part: PartUpdate, Values: map[string]float64{"loss": step.loss, "time_update_s": 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	want := map[string][]scalar{"update/loss": {{1, 1}, {2, 3}, {3, 5}, {4, 6}}, "time/time_update_s": {{1, 1}, {2, 1}, {3, 1}, {4, 1}}}
	if got := boardOf(t, f); !reflect.DeepEqual(got, want) {
		t.Errorf("the event files hold %v, want %v", got, want)
	}
	if !slices.Equal(told, []int{1, 2, 2, 3, 3, 4, 4}) {
		t.Errorf("told %v", told)
	}
}
