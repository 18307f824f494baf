package vllm_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// TestConnectionClosedUnderARequest: a server that closes a kept connection just as the next request arrives, as vLLM does
// after five idle seconds, costs no call.
func TestConnectionClosedUnderARequest(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{} // requests by connection
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" || len(r.Header.Values("Idempotency-Key")) > 0 {
			t.Error("the mark was sent")
		}
		mu.Lock()
		seen[r.RemoteAddr]++
		n := seen[r.RemoteAddr]
		mu.Unlock()
		if n == 2 {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
		}
	}))
	defer s.Close()
	c, err := vllm.New(vllm.Config{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if err := c.SetVersion(context.Background(), int32(i)); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if len(seen) < 3 {
		t.Errorf("%d connections for calls of which every second one was cut off", len(seen))
	}
}
