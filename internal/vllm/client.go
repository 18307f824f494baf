package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/milepost-rl/milepost"
)

// maxBody is the most bytes of an answer that are read; a longer one is refused rather than cut.
const maxBody = 256 << 20

// Config says which server to speak to.
type Config struct {
	URL    string       // base address, for example http://127.0.0.1:8000
	Model  string       // model name to send; "" leaves it to the server, which serves one
	APIKey string       // sent as bearer token where not ""
	HTTP   *http.Client // nil = one without a time-out of its own: contexts bound requests

	// Concurrent is how many requests are expected at once; so many idle connections are kept. 0 = as many as a busy server
	// takes (256).
	Concurrent int
}

// Client speaks to one vLLM server. It is safe for concurrent use.
type Client struct {
	url     string
	model   string
	adapter *int32 // version of the adapter that model names; nil = model is the server's own, whose versions it tells
	apiKey  string
	http    *http.Client
}

// New checks the address and returns a client; it does not contact the server.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, milepost.E("vllm: new", milepost.KindInvalid, "server address %q is not of the form http://host:port", cfg.URL)
	}
	c := &Client{url: strings.TrimRight(cfg.URL, "/"), model: cfg.Model, apiKey: cfg.APIKey, http: cfg.HTTP}
	if c.http == nil {
		c.http = &http.Client{Transport: transport(max(cfg.Concurrent, 256))}
	}
	return c, nil
}

// Every request of this client may be made twice: a second generation, pause or push does what the first did. The empty
// Idempotency-Key says so to net/http, which then repeats a request on a new connection where the server closed a kept one
// just as it was sent. vLLM closes after five idle seconds, which is about the time between two pushes of a small run.
//
// transport is http.DefaultTransport without a proxy and with as many idle connections as there are requests at once: with fewer,
// the default of two above all, a busy pool would open a connection for nearly every request.
func transport(connections int) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	t.MaxIdleConns = 0
	t.MaxIdleConnsPerHost = connections
	return t
}

// CloseIdle closes the connections that no request uses; a client that is given up calls it.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// URL is the server's base address; it names the server in errors and reports.
func (c *Client) URL() string { return c.url }

// StatusError is an answer other than 2xx.
type StatusError struct {
	Method, Path string
	Code         int
	Message      string // the server's own words
}

// Error returns "METHOD path: HTTP code: message".
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: HTTP %d: %s", e.Method, e.Path, e.Code, e.Message)
}

// kindOf maps an HTTP status: what a retry elsewhere may cure is the infrastructure's, the rest the request's.
func kindOf(code int) milepost.Kind {
	switch {
	case code == http.StatusNotFound:
		return milepost.KindNotFound
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return milepost.KindDenied
	case code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500:
		return milepost.KindUnavailable
	}
	return milepost.KindInvalid
}

// request is one HTTP exchange. In is sent as JSON where not nil, Out is decoded into where not nil.
type request struct {
	op      string
	method  string
	path    string // with query
	session string // X-Session-ID, for servers and proxies that read it; affinity is the pool's
	in, out any
}

// do carries one request out and wraps its failure once: KindCanceled or KindTimeout where ctx ended, KindUnavailable
// for the network and 5xx, KindInvalid, KindNotFound or KindDenied for 4xx, KindCorrupt for an answer that is no JSON
// of the expected form.
func (c *Client) do(ctx context.Context, r request) error {
	body, err := c.exchange(ctx, r)
	if err != nil {
		return wrap(ctx, r.op, c.url, err)
	}
	if r.out == nil {
		return nil
	}
	if err := json.Unmarshal(body, r.out); err != nil {
		return milepost.E(r.op, milepost.KindCorrupt, "%s: %s %s answered no valid JSON of the expected form: %w", c.url, r.method, r.path, err)
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, r request) ([]byte, error) {
	var in io.Reader
	if r.in != nil {
		data, err := json.Marshal(r.in)
		if err != nil {
			return nil, milepost.E(r.op, milepost.KindInternal, "encode request: %w", err)
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, in)
	if err != nil {
		return nil, milepost.E(r.op, milepost.KindInternal, "make request: %w", err)
	}
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	if r.session != "" {
		req.Header.Set("X-Session-ID", r.session)
	}
	req.Header["Idempotency-Key"] = nil // repeatable, see transport; nothing is sent
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxBody {
		return nil, milepost.E(r.op, milepost.KindCorrupt, "%s: %s %s answered more than %d bytes", c.url, r.method, r.path, maxBody)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, &StatusError{Method: r.method, Path: r.path, Code: resp.StatusCode, Message: message(data)}
	}
	return data, nil
}

func wrap(ctx context.Context, op, server string, err error) error {
	var typed *milepost.Error
	if errors.As(err, &typed) {
		return err
	}
	var status *StatusError
	switch {
	case errors.As(err, &status):
		return milepost.E(op, kindOf(status.Code), "%s: %w", server, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return milepost.E(op, milepost.KindTimeout, "%s: %w", server, err)
	case ctx.Err() != nil:
		return milepost.E(op, milepost.KindCanceled, "%s: %w", server, err)
	}
	return milepost.E(op, milepost.KindUnavailable, "%s: %w", server, err)
}

// message finds the server's words in an error answer: {"error":{"message":…}}, {"error":…}, {"detail":…} or the start
// of the body.
func message(body []byte) string {
	var shaped struct {
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &shaped) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(shaped.Error, &inner) == nil && inner.Message != "" {
			return inner.Message
		}
		for _, raw := range []json.RawMessage{shaped.Error, shaped.Detail} {
			var s string
			if json.Unmarshal(raw, &s) == nil && s != "" {
				return s
			}
			if len(raw) > 0 && string(raw) != "null" {
				return clip(string(raw))
			}
		}
	}
	if text := strings.TrimSpace(string(body)); text != "" {
		return clip(text)
	}
	return "no message"
}

func clip(s string) string {
	if len(s) > 600 {
		return strings.ToValidUTF8(s[:600], "") + " …"
	}
	return s
}
