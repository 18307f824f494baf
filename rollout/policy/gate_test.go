package policy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// bubblePool is a pool in the time of a synctest bubble; its endpoints are approved of version 1.
func bubblePool(t *testing.T, urls ...string) *Pool {
	t.Helper()
	cfg := DefaultPoolConfig()
	cfg.URLs = urls
	p, err := NewPool(cfg, PoolDeps{HTTP: &http.Client{Transport: &doing{}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range urls {
		p.Approve(u, 1)
	}
	return p
}

// doing is every server's answer to how many requests it has.
type doing struct{ atomic.Int64 }

func (d *doing) RoundTrip(r *http.Request) (*http.Response, error) {
	body := "vllm:num_requests_running 0\nvllm:num_requests_waiting " + strconv.FormatInt(d.Load(), 10) + "\nvllm:kv_cache_usage_perc 0\nvllm:prefix_cache_hits_total 0\n" +
		"vllm:prefix_cache_queries_total 0\nvllm:generation_tokens_total 0\nvllm:prompt_tokens_total 0\n"
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
}

// got is what a Sample came to.
type got struct {
	version int32
	url     string
	err     error
}

// sampling starts a request whose server answers each time, by its address, with a token of the version from answers; the
// server waits until something can be received from there.
func sampling(ctx context.Context, p *Pool, answers map[string]chan int32) chan got {
	out := make(chan got, 1)
	go func() {
		g, url, err := p.Sample(ctx, "s", func(ctx context.Context, c *vllm.Client, _ string) (*vllm.Generation, error) {
			select {
			case v := <-answers[c.URL()]:
				return &vllm.Generation{IDs: []int32{1, 2}, Versions: []int32{v, v}, Newest: v}, nil
			case <-ctx.Done():
				return nil, milepost.E("test", milepost.KindCanceled, "%w", ctx.Err())
			}
		})
		if err != nil {
			out <- got{err: err}
			return
		}
		out <- got{g.Versions[1], url, nil}
	}()
	return out
}

func servers(urls ...string) map[string]chan int32 {
	out := map[string]chan int32{}
	for _, u := range urls {
		out[u] = make(chan int32, 1)
	}
	return out
}

func pending(t *testing.T, why string, c chan got) {
	t.Helper()
	synctest.Wait()
	select {
	case g := <-c:
		t.Fatalf("%s: the request ended with %+v", why, g)
	default:
	}
}

func expect(t *testing.T, why string, c chan got, version int32, url string) {
	t.Helper()
	synctest.Wait()
	select {
	case g := <-c:
		if g.err != nil || g.version != version || g.url != url {
			t.Fatalf("%s: %+v, want version %d of %s", why, g, version, url)
		}
	default:
		t.Fatalf("%s: the request goes on waiting", why)
	}
}

func TestAnswerOfNewWeightsWaitsForTheCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t, "http://a"), servers("http://a")
		old, fresh := sampling(t.Context(), p, at), sampling(t.Context(), p, at)
		synctest.Wait()
		p.Shut("http://a")
		at["http://a"] <- 1
		synctest.Wait()
		if p.Totals().Held != 0 {
			t.Error("an answer of the approved version was held")
		}
		at["http://a"] <- 2
		synctest.Wait()
		if s := p.Stats()[0]; s.Held != 1 || s.Running != 1 || s.State != StateShut {
			t.Errorf("%+v, want one answer held at a shut endpoint", s)
		}
		waiting := sampling(t.Context(), p, at)
		pending(t, "during the push", waiting)
		p.Approve("http://a", 2)
		synctest.Wait()
		versions := (<-old).version + (<-fresh).version
		if versions != 3 {
			t.Errorf("the answers are of versions that add up to %d, want 1 and 2", versions)
		}
		at["http://a"] <- 2
		expect(t, "after the push", waiting, 2, "http://a")
		if c := p.Totals(); c != (PoolTotals{Held: 1}) {
			t.Errorf("totals %+v, want one held", c)
		}
	})
}

// What was sampled between a push that failed and its repeat is of the right version and of the wrong weights.
func TestARepeatedPushDoesNotClearEarlierAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t, "http://a"), servers("http://a")
		held, running := sampling(t.Context(), p, at), sampling(t.Context(), p, at)
		synctest.Wait()
		p.Shut("http://a")
		at["http://a"] <- 2
		synctest.Wait()
		p.Quarantine("http://a", 2, errors.New("gap 3"))
		p.Shut("http://a")
		p.Approve("http://a", 2)
		synctest.Wait()
		if c := p.Totals(); c != (PoolTotals{Held: 1, Dropped: 1, Rerun: 2}) {
			t.Errorf("totals %+v, want one answer held and dropped, both requests run again", c)
		}
		pending(t, "run again", held)
		at["http://a"] <- 2
		at["http://a"] <- 2
		synctest.Wait()
		expect(t, "first", held, 2, "http://a")
		expect(t, "second", running, 2, "http://a")
	})
}

// A push that the trainer's failure broke off says nothing of its version, and nothing later does.
func TestAPushWithoutAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t, "http://a"), servers("http://a")
		c := sampling(t.Context(), p, at)
		synctest.Wait()
		p.Shut("http://a")
		at["http://a"] <- 2
		pending(t, "no verdict", c)
		p.Shut("http://a")
		p.Approve("http://a", 3)
		pending(t, "its version was never approved", c)
		at["http://a"] <- 3
		expect(t, "run again", c, 3, "http://a")
	})
}

func TestQuarantinedAndGoneEndpointsHandTheirRequestsOn(t *testing.T) {
	for name, leave := range map[string]func(*Pool){
		"quarantined": func(p *Pool) { p.Quarantine("http://a", 2, errors.New("gap 3")) },
		"gone":        func(p *Pool) { p.Remove("http://a/") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, at := bubblePool(t, "http://a", "http://b"), servers("http://a", "http://b")
				c := sampling(t.Context(), p, at)
				pending(t, "at a", c)
				leave(p)
				at["http://b"] <- 1
				expect(t, "elsewhere", c, 1, "http://b")
				if got := p.Totals(); got.Rerun != 1 || got.Dropped != 0 {
					t.Errorf("totals %+v, want one request run again", got)
				}
			})
		})
	}
}

func TestQuarantineSaysWhy(t *testing.T) {
	p := newTestPool(t, nil, "http://a")
	p.Quarantine("http://a", 7, errors.New("gap 3"))
	if s := p.Snapshot()[0]; s.State != StateQuarantined || !strings.Contains(s.Why, "version 7: gap 3") {
		t.Errorf("%+v does not say why", s)
	}
	p.Approve("http://a", 8)
	if s := p.Snapshot()[0]; s.State != StateOpen || s.Why != "" || s.Approved != 8 {
		t.Errorf("%+v, want open for version 8", s)
	}
	for _, unknown := range []func(){ // an endpoint may go at any moment of a push
		func() { p.Shut("http://b") }, func() { p.Approve("http://b", 1) }, func() { p.Quarantine("http://b", 1, errors.New("x")) }, func() { p.Remove("http://b") },
	} {
		unknown()
	}
	if n := len(p.Snapshot()); n != 1 {
		t.Errorf("%d endpoints, want 1", n)
	}
}

func TestOlderWeightsBeginATerm(t *testing.T) {
	p := newTestPool(t, nil)
	if err := p.Add("http://a"); err != nil {
		t.Fatal(err)
	}
	p.Approve("http://a", 5)
	was := p.Snapshot()[0].Term
	p.Approve("http://a", 6)
	if got := p.Snapshot()[0].Term; got != was {
		t.Error("newer weights began a term")
	}
	p.Approve("http://a", 4)
	if got := p.Snapshot()[0].Term; got == was {
		t.Error("older weights, another lineage, began no term")
	}
}

func TestJoiningEndpointRendersAndDoesNotSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t), servers("http://a")
		c := sampling(t.Context(), p, at)
		pending(t, "without endpoint", c)
		if err := p.Add("http://a"); err != nil {
			t.Fatal(err)
		}
		if url, err := p.Do(t.Context(), "", func(context.Context, *vllm.Client) error { return nil }); url != "http://a" || err != nil {
			t.Errorf("rendering went to %q, %v", url, err)
		}
		pending(t, "joining", c)
		p.Approve("http://a", 0)
		at["http://a"] <- 0
		expect(t, "open", c, 0, "http://a")
	})
}

func TestWaitingEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t, "http://a"), servers("http://a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		held := sampling(ctx, p, at)
		synctest.Wait()
		p.Shut("http://a")
		at["http://a"] <- 2
		queued := sampling(ctx, p, at)
		time.Sleep(2 * time.Second)
		for _, c := range []chan got{held, queued} {
			if g := <-c; milepost.KindOf(g.err) != milepost.KindTimeout {
				t.Errorf("%v, want KindTimeout", g.err)
			}
		}
		if s := p.Stats()[0]; s.Running != 0 || s.Held != 0 || s.Failed != 0 {
			t.Errorf("%+v, want nothing left and no failure of the endpoint's", s)
		}
	})
}

// A version that nobody approves, since somebody else pushes to the server, does not hold a request for ever.
func TestHoldingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t, "http://a", "http://b"), servers("http://a", "http://b")
		at["http://a"] <- 9
		c := sampling(t.Context(), p, at)
		time.Sleep(p.cfg.Timeout + time.Second)
		at["http://b"] <- 1
		expect(t, "elsewhere", c, 1, "http://b")
		if last := p.Stats()[0].Last; !strings.Contains(last, "tokens of version 9, approved is 1") {
			t.Errorf("a's last error is %q", last)
		}
	})
}

// An endpoint that leaves ends what it has, also where that is held by a push, and no longer than it is given.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, at := bubblePool(t, "http://a", "http://b"), servers("http://a", "http://b")
		first := sampling(t.Context(), p, at)
		synctest.Wait()
		slow := sampling(t.Context(), p, map[string]chan int32{"http://b": at["http://b"]})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go p.Drain(ctx, "http://a")
		at["http://a"] <- 2
		pending(t, "held while draining", first)
		p.Approve("http://a", 2)
		expect(t, "approved while draining", first, 2, "http://a")
		if s := p.Snapshot()[0]; s.State != StateShut {
			t.Errorf("%+v: a leaving endpoint was opened", s)
		}
		time.Sleep(time.Minute + time.Second)
		if n := len(p.Snapshot()); n != 1 {
			t.Fatalf("%d endpoints after the bound, want b alone", n)
		}
		at["http://b"] <- 1
		expect(t, "handed on", slow, 1, "http://b")
		p.Drain(t.Context(), "http://b") // nothing under way: at once
		if n := len(p.Snapshot()); n != 0 {
			t.Errorf("%d endpoints left", n)
		}
	})
}

// What a pool on another machine asked of an endpoint that leaves, only its server knows.
func TestDrainWaitsForOtherPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bubblePool(t, "http://a")
		requests := p.deps.HTTP.Transport.(*doing)
		requests.Store(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, want := range []time.Duration{2750 * time.Millisecond, time.Minute} { // it ends what it has, and it does not
			began := time.Now()
			if want < time.Minute {
				time.AfterFunc(1900*time.Millisecond, func() { requests.Store(0) })
			}
			p.Drain(ctx, "http://a")
			if took := time.Since(began); took != want || len(p.Snapshot()) != 0 {
				t.Errorf("left after %v with %d endpoints there, want %v", took, len(p.Snapshot()), want)
			}
			if err := p.Add("http://a"); err != nil {
				t.Fatal(err)
			}
			requests.Store(1)
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
		}
	})
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner, mirror, at := bubblePool(t, "http://a", "http://b"), bubblePool(t), servers("http://a", "http://b")
		follow := func() {
			t.Helper()
			if err := mirror.Follow(owner.Snapshot()); err != nil {
				t.Fatal(err)
			}
		}
		follow()
		c := sampling(t.Context(), mirror, at)
		synctest.Wait()
		owner.Shut("http://a")
		at["http://a"] <- 2 // the mirror has not heard of the push yet
		pending(t, "the push is not known", c)
		owner.Approve("http://a", 2)
		changed := owner.Changed()
		follow()
		expect(t, "approved", c, 2, "http://a")
		// Quarantine and Approve between two snapshots: the mirror learns from the term.
		c = sampling(t.Context(), mirror, at)
		synctest.Wait()
		owner.Quarantine("http://a", 3, errors.New("gap 3"))
		owner.Approve("http://a", 3)
		select {
		case <-changed:
		default:
			t.Error("nobody was told of the change")
		}
		at["http://a"] <- 3
		pending(t, "not approved", c)
		follow()
		at["http://b"] <- 1
		expect(t, "run again", c, 1, "http://b")
		owner.Remove("http://b")
		follow()
		if s := mirror.Snapshot(); len(s) != 1 || s[0] != owner.Snapshot()[0] {
			t.Errorf("the mirror has %+v, want %+v", s, owner.Snapshot())
		}
		if err := mirror.Follow([]EndpointState{{URL: "no address"}}); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%v, want KindInvalid", err)
		}
	})
}

// Time alone closes circuits: while the only open endpoint fails and another is about to open, the wait is no attempt.
func TestTheWaitForAJoiningEndpointIsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bubblePool(t, "http://a", "http://b")
		p.cfg.OpenFor, p.cfg.Retries = time.Hour, 3
		p.Shut("http://b")
		done := make(chan error)
		go func() {
			_, _, err := p.Sample(t.Context(), "", func(_ context.Context, c *vllm.Client, _ string) (*vllm.Generation, error) {
				if c.URL() == "http://a" {
					return nil, milepost.E("test", milepost.KindUnavailable, "refused")
				}
				return &vllm.Generation{}, nil
			})
			done <- err
		}()
		time.Sleep(5 * time.Minute)
		p.Approve("http://b", 1)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
