package messages

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// imports notes what it is given.
type imports struct{ got chan string }

func (*imports) Has(string) bool { return false }
func (i *imports) Import(_ context.Context, tree string, r io.Reader) (*repo.Base, error) {
	b, err := io.ReadAll(r)
	i.got <- tree + " " + string(b)
	return nil, err
}

// A caller that stops waiting does so at once, and the fetch that it began goes on for the others.
func TestAFetchOutlivesItsFirstCaller(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, JetStream: true, StoreDir: t.TempDir()})
	must(err)
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	nc, err := nats.Connect(s.ClientURL())
	must(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(err)
	store, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "b"})
	must(err)
	_, err = store.PutBytes(t.Context(), "o", []byte("archive"))
	must(err)
	asks := make(chan *nats.Msg, 4)
	_, err = nc.ChanSubscribe(BaseSubject("p", "r"), asks)
	must(err)
	into := &imports{got: make(chan string, 4)}
	f := &BaseFetcher{NC: nc, Prefix: "p", Bases: into, Store: func(context.Context) (jetstream.ObjectStore, error) { return store, nil }}
	have := func(ctx context.Context) <-chan error {
		out := make(chan error, 1)
		go func() { out <- f.Have(ctx, "r", &milepost.Task{ID: "t", BaseTree: "tree", Repo: "/nowhere/at/all"}) }()
		return out
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := have(ctx)
	ask := <-asks
	second := have(t.Context())
	time.Sleep(50 * time.Millisecond) // until it waits, too
	cancel()
	select {
	case err := <-first:
		if milepost.KindOf(err) != milepost.KindCanceled {
			t.Errorf("the first caller: %v, want KindCanceled", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the first caller waits for an answer that it does not want")
	}
	reply, err := Encode(ask.Reply, BaseReply{V: BaseVersion, Object: "o"})
	must(err)
	must(nc.PublishMsg(reply))
	select {
	case err := <-second:
		must(err)
	case <-time.After(5 * time.Second):
		t.Fatal("the second caller gets nothing")
	}
	if got := <-into.got; got != "tree archive" || len(into.got) != 0 || len(asks) != 0 {
		t.Errorf("taken in: %q and %d more, %d more asks; want one fetch", got, len(into.got), len(asks))
	}
}
