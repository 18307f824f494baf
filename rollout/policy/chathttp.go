package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
)

// extraDoer is the HTTP client under go-openai. go-openai has no field for anything but OpenAI's own, and leaves out
// what Go thinks is zero: temperature 0, top_p 0 and an empty tool message. The wrapper writes them into the body.
type extraDoer struct{ next *http.Client }

type extraKey struct{}

// withExtra hands body fields to the wrapper; they win over go-openai's.
func withExtra(ctx context.Context, fields map[string]any) context.Context {
	return context.WithValue(ctx, extraKey{}, fields)
}

// Do adds the fields of the request's context to a JSON object body.
func (d extraDoer) Do(req *http.Request) (*http.Response, error) {
	extra, _ := req.Context().Value(extraKey{}).(map[string]any)
	if req.Body == nil || extra == nil {
		return d.next.Do(repeatable(req))
	}
	data, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, fmt.Errorf("read request body: %w", err)
	}
	req.Body.Close()
	if data, err = addFields(data, extra); err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(data))
	req.ContentLength = int64(len(data))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	return d.next.Do(repeatable(req))
}

// repeatable lets net/http repeat a request on a new connection where the server closed a kept one just as it was sent;
// the empty key itself is not sent. Nothing was answered then, so nothing is sampled twice.
func repeatable(req *http.Request) *http.Request {
	req.Header["Idempotency-Key"] = nil
	return req
}

func addFields(body []byte, extra map[string]any) ([]byte, error) {
	fields := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber() // a seed of 53 bits does not survive float64 formatting
	if err := dec.Decode(&fields); err != nil {
		return nil, fmt.Errorf("request body is no JSON object: %w", err)
	}
	maps.Copy(fields, extra)
	if messages, ok := fields["messages"].([]any); ok {
		for _, m := range messages {
			if m, ok := m.(map[string]any); ok && m["content"] == nil {
				m["content"] = ""
			}
		}
	}
	return json.Marshal(fields)
}
