package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// TestBenchLoop measures both loops in small, in processes of their own: each does every turn of the script.
func TestBenchLoop(t *testing.T) {
	t.Setenv(commandEnv, "bench")
	want := []string{loopMilepost}
	if _, err := trainerbridge.Environment(trainerbridge.EnvBench); err == nil {
		want = append(want, loopScripted) // the other's model takes as long to import as all the rest of the test
	}
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&errs)
	if code := run(t.Context(), root, strings.Fields("bench --json --tests= --loop 5 --loop-peer 0 --loop-turns 4 --loop-latency 20ms")); code != exitDone {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	var r benchReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Loops) != len(want) || len(r.Hidden) != 0 {
		t.Fatalf("%v: %s", err, out.String())
	}
	for i, row := range r.Loops {
		const n = 5
		if row.Loop != want[i] || row.Episodes != n || row.Costs.Turns != 4*n || row.Memory.Turns != 4*n {
			t.Errorf("%+v", row)
		}
		if row.Costs.CPU <= 0 || row.Costs.Seconds < .08 || row.Memory.Before < 1<<20 || row.Memory.Held < row.Memory.Before/2 || row.Memory.Settled < 1<<20 || row.Costs.Held != 0 {
			t.Errorf("figures %+v", row)
		}
	}
	out.Reset()
	if err := printBench(&out, benchReport{Options: r.Options, Loops: []loopRow{{Loop: "l", Episodes: 10, Turns: 4, Costs: loopFigures{Turns: 40, Seconds: 2, CPU: .1},
		Memory: loopFigures{Before: 1e6, Held: 3e6, Settled: 2e6}}}}); err != nil {
		t.Fatal(err)
	}
	for _, cell := range []string{"2.50 ms", "20", "5.0", "200 kB", "100 kB"} {
		if !strings.Contains(out.String(), cell) {
			t.Errorf("%q is not in\n%s", cell, out.String())
		}
	}
}

// TestStubTokens: the stub's tokens say what they were made of, and what stands between special tokens is tokenized alone.
func TestStubTokens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := rapid.String().Draw(rt, "a"), rapid.String().Draw(rt, "b")
		whole := stubEncode(a + "<|im_end|>" + b)
		if got := stubDecode(whole); got != a+"<|im_end|>"+b {
			rt.Fatalf("%q", got)
		}
		if parts := slices.Concat(stubEncode(a), []int32{stubEnd}, stubEncode(b)); !slices.Equal(whole, parts) && !strings.ContainsAny(a+b, "<|>") {
			rt.Fatalf("%v, apart %v", whole, parts)
		}
	})
}
