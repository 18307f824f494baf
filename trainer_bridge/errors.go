package trainerbridge

import (
	"errors"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// dialBackoff keeps trying a server that is still importing PyTorch, twice a second.
var dialBackoff = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}

// wireError turns an error of a call into a *milepost.Error: the trainer's own, carried in the status details, or one
// made from the status code where the call never reached the trainer's code.
func wireError(op string, err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	var known *milepost.Error
	if errors.As(err, &known) || !ok {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	for _, d := range s.Details() {
		if e, ok := d.(*trainerpb.ErrorDetail); ok {
			return &milepost.Error{Op: e.Op, Kind: milepost.Kind(e.Kind), Err: errors.New(e.Message)}
		}
	}
	kind := milepost.KindInternal
	switch s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		kind = milepost.KindUnavailable
	case codes.Canceled:
		kind = milepost.KindCanceled
	case codes.ResourceExhausted, codes.InvalidArgument:
		kind = milepost.KindInvalid
	case codes.Unimplemented:
		kind = milepost.KindConflict
	}
	return milepost.E(op, kind, "%s (%s)", s.Message(), s.Code())
}
