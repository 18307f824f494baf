package trainerbridge_test

import (
	"context"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// TestTransferCalls makes the calls of a transfer whose other end never comes; that a real vLLM receives is tested in
// package weights.
func TestTransferCalls(t *testing.T) {
	s := sharedServer(t)
	dir := initTiny(t, s, writeDemonstrations(t, 12))
	plan, err := s.TransferPlan(t.Context(), dir)
	if err != nil || len(plan.Names) < 20 || len(plan.DTypes) != len(plan.Names) || len(plan.Shapes) != len(plan.Names) || plan.DTypes[0] != "float32" || len(plan.SHA256) != 64 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	offer := trainerbridge.TransferOffer{Replica: "http://a", Backend: "gloo", Host: "127.0.0.1", Workers: 1, Timeout: time.Minute, Buffer: 1 << 20}
	in, err := s.TransferOpen(t.Context(), offer)
	if err != nil || in.Port == 0 || in.Group == "" {
		t.Fatalf("invitation %+v, %v", in, err)
	}
	send := func(ctx context.Context, link int64, dir, sha string) error {
		_, err := s.TransferSend(ctx, link, dir, sha)
		return err
	}
	nccl, mpi := offer, offer
	nccl.Backend, mpi.Backend = "nccl", "mpi"
	open := func(o trainerbridge.TransferOffer) error { _, err := s.TransferOpen(t.Context(), o); return err }
	_, missing := s.TransferPlan(t.Context(), dir+"-none")
	for want, err := range map[string]error{
		"unavailable: there is no link 99": send(t.Context(), 99, dir, plan.SHA256),
		"conflict: ask again":              send(t.Context(), in.Link, dir, strings.Repeat("0", 64)),
		"invalid: the trainer has no GPU":  open(nccl),
		`invalid: backend is 'mpi'`:        open(mpi),
		"not_found: does not exist":        missing,
	} {
		kind, text, _ := strings.Cut(want, ": ")
		if milepost.KindOf(err) != milepost.Kind(kind) || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if in, err = s.TransferOpen(t.Context(), offer); err != nil {
		t.Fatal(err)
	}
	if err := send(ctx, in.Link, dir, plan.SHA256); err == nil {
		t.Error("a transfer to nobody succeeded")
	}
	if _, err := s.Score(t.Context(), [][]int32{{1, 2, 3}}); err != nil || time.Since(began) > 30*time.Second {
		t.Errorf("%v after the caller left, the trainer answers %v", time.Since(began), err)
	}
}
