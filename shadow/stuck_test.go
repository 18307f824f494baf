package shadow

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestServerThatStoresNothingIsReported(t *testing.T) {
	var r refusals
	at := time.Now()
	timeout := errors.New("context deadline exceeded")
	for _, c := range []struct {
		after time.Duration
		err   error
		says  string // "" = nothing
	}{
		{0, timeout, ""},
		{stuckFor - 1, timeout, ""},
		{stuckFor, timeout, "nothing could be stored for 10s"},
		{stuckFor + time.Second, timeout, ""},
		{2*stuckFor + time.Second, &jetstream.APIError{Description: "maximum bytes exceeded"}, ""},
		{2*stuckFor + time.Second, &jetstream.APIError{Description: "insufficient storage resources available"}, "nothing could be stored for 21s"},
	} {
		err := r.refused(c.err, at.Add(c.after))
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), restartAdvice)) {
			t.Errorf("after %s it says %v, want %q", c.after, err, c.says)
		}
	}
}
