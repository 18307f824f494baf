package trainerbridge

import (
	"context"
	"errors"
	"io"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// maxMessage bounds one gRPC message (Score of long contexts is the largest); the Python server has the same bound.
const maxMessage = 256 << 20

// Client controls one trainer process.
//
// Invariants: every error is a *milepost.Error. The trainer runs one changing call (Init, Update, Supervised, Save,
// Load, Export, Score, Values) at a time, in the order of arrival; Health and Hello answer meanwhile. A Client may be used by
// several goroutines. An operation whose context ends may still have taken place: Update is safe to repeat under the
// same batch id (it is refused as conflict where the weights hold the batch), the others are safe to repeat as they are.
type Client struct {
	conn *grpc.ClientConn
	rpc  trainerpb.TrainerClient
	info Server
}

// Server is what the trainer said of itself at connect.
type Server struct {
	PID                 int64
	Torch, Transformers string
	Threads             int
}

// Dial connects to addr ("127.0.0.1:PORT" or "unix:/path"), waiting for the server to come up until ctx ends, and
// compares protocol and schema hashes. Kinds: unavailable (no answer in time), conflict (hashes differ), canceled.
func Dial(ctx context.Context, addr string, opts ...grpc.DialOption) (*Client, error) {
	const op = "trainerbridge: dial"
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: dialBackoff, MinConnectTimeout: 2 * time.Second}),
	}, opts...)
	conn, err := grpc.NewClient(addr, opts...)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	c := &Client{conn: conn, rpc: trainerpb.NewTrainerClient(conn)}
	reply, err := c.rpc.Hello(ctx, &trainerpb.HelloRequest{SchemaHash: trainerpb.SchemaHash}, grpc.WaitForReady(true))
	if err == nil && reply.SchemaHash != trainerpb.SchemaHash {
		err = milepost.E(op, milepost.KindConflict, "trainer at %s speaks schema %.12s, this binary %.12s; use a trainer of the same version", addr, reply.SchemaHash, trainerpb.SchemaHash)
	}
	if err != nil {
		conn.Close()
		return nil, wireError(op, err)
	}
	c.info = Server{PID: reply.Pid, Torch: reply.TorchVersion, Transformers: reply.TransformersVersion, Threads: int(reply.Threads)}
	return c, nil
}

// Close ends the connection; the trainer goes on.
func (c *Client) Close() error {
	return milepost.Wrap("trainerbridge: close", milepost.KindUnavailable, c.conn.Close())
}

// Server returns what the trainer said of itself at connect.
func (c *Client) Server() Server { return c.info }

// ModelInfo describes the weights that the trainer holds.
type ModelInfo struct {
	Parameters int64
	VocabSize  int
	MaxContext int
	DType      string
	Updates    int64    // updates held by the weights
	BatchIDs   []string // the batches of those updates, in order
	SHA256     string   // over names, shapes and bytes of all weights but the value head's; with an adapter over its and the base's
	ValueHead  bool
}

func modelInfo(m *trainerpb.ModelInfo) ModelInfo {
	return ModelInfo{
		Parameters: m.GetParameters(), VocabSize: int(m.GetVocabSize()), MaxContext: int(m.GetMaxContext()), DType: m.GetDtype(),
		Updates: m.GetUpdates(), BatchIDs: m.GetBatchIds(), SHA256: m.GetWeightsSha256(), ValueHead: m.GetValueHead(),
	}
}

// CreateModel trains a tokenizer on the corpus file (text, or demonstrations where it ends in .jsonl) and writes a
// randomly initialised model of that shape to the directory out, which must not exist. It returns parameters and
// vocabulary size. Kinds: invalid, not_found, conflict (out exists), unavailable.
func (c *Client) CreateModel(ctx context.Context, corpus, out string, config ModelConfig) (parameters int64, vocab int, err error) {
	if err := config.Validate(); err != nil {
		return 0, 0, err
	}
	reply, err := c.rpc.CreateModel(ctx, &trainerpb.CreateModelRequest{Corpus: corpus, Out: out, Model: config.proto()})
	if err != nil {
		return 0, 0, wireError("trainerbridge: create model", err)
	}
	return reply.Parameters, int(reply.VocabSize), nil
}

// InitRequest says what [Client.Init] loads.
type InitRequest struct {
	Model     string // Hugging Face model directory; its embeddings must be untied
	Reference string // model directory of the KL reference; "" = none
	DType     string // "float32" or "bfloat16" (float32 weights, bfloat16 arithmetic); "" = float32
	Seed      int64
	ValueHead bool // with a value head, which starts at 0: every value is 0 until it has learned
	Recompute bool // activation checkpointing: less memory for about a third more arithmetic
	Options   Options
}

// Init loads a model with a fresh optimizer. Kinds: invalid, not_found, unavailable.
func (c *Client) Init(ctx context.Context, r InitRequest) (ModelInfo, error) {
	if r.DType == "" {
		r.DType = "float32"
	}
	reply, err := c.rpc.Init(ctx, &trainerpb.InitRequest{Model: r.Model, Reference: r.Reference, Dtype: r.DType, Seed: r.Seed, ValueHead: r.ValueHead, Recompute: r.Recompute, Options: r.Options.proto()})
	if err != nil {
		return ModelInfo{}, wireError("trainerbridge: init", err)
	}
	return modelInfo(reply.Info), nil
}

// Update trains on one batch, all or nothing: after an error weights and optimizer are as before it and the batch file
// stays. A trainer with a value head needs rows with values and returns, one without refuses them. Kinds: invalid, not_found, corrupt (hash or schema), conflict (the weights hold this batch id already),
// internal (a loss or gradient that is not finite), unavailable.
func (c *Client) Update(ctx context.Context, b Batch, config UpdateConfig) (UpdateMetrics, error) {
	if err := config.Validate(); err != nil {
		return UpdateMetrics{}, err
	}
	reply, err := c.rpc.Update(ctx, &trainerpb.UpdateRequest{BatchId: b.ID, Path: b.Path, Sha256: b.SHA256, Config: config.proto()})
	if err != nil {
		return UpdateMetrics{}, wireError("trainerbridge: update", err)
	}
	return updateMetrics(reply), nil
}

// Supervised fine-tunes on the demonstrations of a JSONL file, all or nothing (also when ctx ends), with an optimizer
// of its own; the optimizer of Update starts afresh afterwards. each, where not nil, gets every step's progress and
// must return soon. The last progress is returned. Kinds: invalid, not_found, internal, unavailable, canceled.
func (c *Client) Supervised(ctx context.Context, path string, config SFTConfig, each func(SFTProgress)) (SFTProgress, error) {
	const op = "trainerbridge: supervised"
	if err := config.Validate(); err != nil {
		return SFTProgress{}, err
	}
	stream, err := c.rpc.Supervised(ctx, &trainerpb.SupervisedRequest{Path: path, Config: config.proto()})
	if err != nil {
		return SFTProgress{}, wireError(op, err)
	}
	var last SFTProgress
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if !last.Done {
				return last, milepost.E(op, milepost.KindUnavailable, "the trainer ended the stream at step %d without a result", last.Step)
			}
			return last, nil
		}
		if err != nil {
			return last, wireError(op, err)
		}
		last = sftProgress(m)
		if each != nil {
			each(last)
		}
	}
}

// Score returns, for every sequence, the logprob of each token given the ones before it (natural logarithm,
// temperature 1); element 0 is 0. Kinds: invalid, unavailable.
func (c *Client) Score(ctx context.Context, sequences [][]int32) ([][]float32, error) {
	return c.score(ctx, &trainerpb.ScoreRequest{Sequences: tokenLists(sequences)})
}

// ScoreReference is Score by the KL reference model; invalid where none was loaded.
func (c *Client) ScoreReference(ctx context.Context, sequences [][]int32) ([][]float32, error) {
	return c.score(ctx, &trainerpb.ScoreRequest{Sequences: tokenLists(sequences), Reference: true})
}

// ScoreAt is Score at the sampler's temperature.
func (c *Client) ScoreAt(ctx context.Context, sequences [][]int32, temperature float64) ([][]float32, error) {
	return c.score(ctx, &trainerpb.ScoreRequest{Sequences: tokenLists(sequences), Temperature: temperature})
}

func (c *Client) score(ctx context.Context, r *trainerpb.ScoreRequest) ([][]float32, error) {
	reply, err := c.rpc.Score(ctx, r)
	if err != nil {
		return nil, wireError("trainerbridge: score", err)
	}
	out := make([][]float32, len(reply.Logprobs))
	for i, l := range reply.Logprobs {
		out[i] = l.Values
	}
	return out, nil
}

// Values returns, for each row of a batch file (Batch.ID and advantages are not read), the value head's value of each
// trained token in order: that of the state in which the token was chosen. Rows are packed into forward passes of up to
// microTokens, so one call serves a whole update. Kinds: invalid (no value head, a row that does not fit the model),
// not_found, corrupt, internal (a value that is not finite), unavailable.
func (c *Client) Values(ctx context.Context, b Batch, microTokens int) ([][]float32, error) {
	reply, err := c.rpc.Values(ctx, &trainerpb.ValuesRequest{Path: b.Path, Sha256: b.SHA256, MicroTokens: int32(microTokens)})
	if err != nil {
		return nil, wireError("trainerbridge: values", err)
	}
	out := make([][]float32, len(reply.Rows))
	for i, l := range reply.Rows {
		out[i] = l.Values
	}
	return out, nil
}

func tokenLists(sequences [][]int32) []*trainerpb.TokenList {
	out := make([]*trainerpb.TokenList, len(sequences))
	for i, s := range sequences {
		out[i] = &trainerpb.TokenList{Ids: s}
	}
	return out
}

// Save writes a checkpoint directory: weights, value head, tokenizer, optimizer, counters and batch ids, the commit marker last. A
// committed checkpoint of that name is replaced. Kinds: invalid, unavailable.
func (c *Client) Save(ctx context.Context, dir string) (ModelInfo, error) {
	reply, err := c.rpc.Save(ctx, &trainerpb.SaveRequest{Dir: dir})
	if err != nil {
		return ModelInfo{}, wireError("trainerbridge: save", err)
	}
	return modelInfo(reply.Info), nil
}

// LoadRequest says what [Client.Load] loads.
type LoadRequest struct {
	Dir            string // checkpoint
	Reference      string // model directory of the KL reference; "" = none
	ValueHead      bool   // whether a value head is wanted; a checkpoint that differs is refused
	FreshValueHead bool   // with ValueHead: a checkpoint without a value head gets a new one instead
	Recompute      bool   // activation checkpointing
	Options        Options
}

// Load reads a checkpoint; the next Update goes on exactly where the saved trainer would have. Kinds: invalid (a value
// head that is missing or not wanted), not_found, corrupt (no commit marker or a wrong hash), unavailable.
func (c *Client) Load(ctx context.Context, r LoadRequest) (ModelInfo, error) {
	reply, err := c.rpc.Load(ctx, &trainerpb.LoadRequest{Dir: r.Dir, Reference: r.Reference, ValueHead: r.ValueHead, FreshValueHead: r.FreshValueHead, Recompute: r.Recompute, Options: r.Options.proto()})
	if err != nil {
		return ModelInfo{}, wireError("trainerbridge: load", err)
	}
	return modelInfo(reply.Info), nil
}

// Export writes a Hugging Face model directory (safetensors, configuration, tokenizer; no value head, an adapter merged) that the
// sampler loads. It appears whole; one of that name is replaced. It returns the SHA-256 of the weights, as [ModelInfo].
func (c *Client) Export(ctx context.Context, dir string) (string, error) {
	reply, err := c.rpc.Export(ctx, &trainerpb.ExportRequest{Dir: dir})
	if err != nil {
		return "", wireError("trainerbridge: export", err)
	}
	return reply.WeightsSha256, nil
}

// ExportAdapter writes the LoRA adapter alone, in peft's form with the path of its base, for a server that takes adapters.
// It appears whole; one of that name is replaced. It returns the SHA-256 of the weights, as [ModelInfo]. Kinds: invalid
// where no adapter is trained, unavailable.
func (c *Client) ExportAdapter(ctx context.Context, dir string) (string, error) {
	reply, err := c.rpc.Export(ctx, &trainerpb.ExportRequest{Dir: dir, Adapter: true})
	if err != nil {
		return "", wireError("trainerbridge: export adapter", err)
	}
	return reply.WeightsSha256, nil
}

// Health is what the trainer says of itself now.
type Health struct {
	Busy    string // the call under way; "" = idle
	BusyFor time.Duration
	Loaded  bool
	Updates int64
	Memory  int64 // resident bytes
}

// Health answers at once, also while the trainer works. Kinds: unavailable, canceled.
func (c *Client) Health(ctx context.Context) (Health, error) {
	reply, err := c.rpc.Health(ctx, &trainerpb.HealthRequest{})
	if err != nil {
		return Health{}, wireError("trainerbridge: health", err)
	}
	return Health{Busy: reply.Busy, BusyFor: seconds(reply.BusySeconds), Loaded: reply.Loaded, Updates: reply.Updates, Memory: reply.MemoryBytes}, nil
}

// Shutdown asks the server to end after the call under way.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.rpc.Shutdown(ctx, &trainerpb.ShutdownRequest{})
	return wireError("trainerbridge: shutdown", err)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
