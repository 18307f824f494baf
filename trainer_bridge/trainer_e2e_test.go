package trainerbridge_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// python returns the interpreter of the pinned trainer environment, installing it where it is missing.
func python(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python/envs/install", "trainer").Output()
	if err != nil {
		t.Fatalf("install the trainer environment: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "bin", "python")
}

// server is a real trainer process under test.
type server struct {
	*trainerbridge.Client
	cmd *exec.Cmd
	log *bytes.Buffer
}

// startServer starts a trainer of its own for the test, on a Unix socket; it is killed, and waited for, at the end.
func startServer(t *testing.T) *server {
	t.Helper()
	s, stop, err := launch(python(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("trainer's log:\n%s", s.log)
		}
	})
	return s
}

// shared is the one trainer of the tests that leave it alive; TestMain stops it.
var shared struct {
	sync.Mutex
	*server
	stop func()
}

// sharedServer returns the shared trainer; tests that use it do not run in parallel, and each begins with Init.
func sharedServer(t *testing.T) *server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		var err error
		if shared.server, shared.stop, err = launch(python(t)); err != nil {
			t.Fatal(err)
		}
	}
	return shared.server
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.stop()
		if code != 0 {
			fmt.Fprintf(os.Stderr, "shared trainer's log:\n%s", shared.log)
		}
	}
	os.Exit(code)
}

// launch starts a trainer process and connects to it; stop ends both.
func launch(python string) (s *server, stop func(), err error) {
	dir, err := os.MkdirTemp("", "mp") // short: the path of a Unix socket has a limit of about 100 bytes
	if err != nil {
		return nil, nil, err
	}
	path, err := filepath.Abs("python")
	if err != nil {
		return nil, nil, err
	}
	s = &server{log: new(bytes.Buffer)}
	addr := "unix:" + filepath.Join(dir, "trainer.sock")
	s.cmd = exec.Command(python, "-m", "milepost_trainer", "serve", "--listen", addr, "--threads", "1")
	s.cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return nil, nil, err
	}
	end := func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		os.RemoveAll(dir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if s.Client, err = trainerbridge.Dial(ctx, addr); err != nil {
		end()
		return nil, nil, fmt.Errorf("%w; the trainer's log:\n%s", err, s.log)
	}
	return s, func() { s.Close(); end() }, nil
}

// writeDemonstrations writes n short conversations with one tool call each.
func writeDemonstrations(t *testing.T, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":"d%d","messages":[{"role":"system","content":"You repair code."},{"role":"user","content":"Fix add_%d."},`+
			`{"role":"assistant","content":"<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"m%d.py\"}}\n</tool_call>"},`+
			`{"role":"tool","content":"def add(a, b):\n    return a - b\n"},{"role":"assistant","content":"Done."}]}`+"\n", i, i%7, i%5)
	}
	path := filepath.Join(t.TempDir(), "demos.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func tinyModel() trainerbridge.ModelConfig {
	c := trainerbridge.DefaultModelConfig()
	c.VocabSize, c.Layers, c.Width, c.Heads, c.KeyValueHeads, c.MLPWidth, c.MaxContext = 320, 2, 32, 2, 1, 64, 256
	return c
}

// initTiny makes and loads a tiny model and returns its directory.
func initTiny(t *testing.T, s *server, demos string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	parameters, vocab, err := s.CreateModel(t.Context(), demos, dir, tinyModel())
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Init(t.Context(), trainerbridge.InitRequest{Model: dir, Reference: dir, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	if info.Parameters != parameters || info.VocabSize != vocab || info.MaxContext != 256 || info.Updates != 0 {
		t.Fatalf("info %+v; made with %d parameters, vocabulary %d", info, parameters, vocab)
	}
	return dir
}

// batchOf scores the sequences and makes a batch whose second halves are trained with these advantages.
func batchOf(t *testing.T, s *server, id string, sequences [][]int32, advantages []float32) trainerbridge.Batch {
	t.Helper()
	logprobs, err := s.Score(t.Context(), sequences)
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]trainerbridge.Row, len(sequences))
	for i, tokens := range sequences {
		n := len(tokens)
		r := trainerbridge.Row{Episode: fmt.Sprint("e", i), Tokens: tokens, Logprobs: logprobs[i], Versions: make([]int32, n), Mask: make([]bool, n), Advantages: make([]float32, n)}
		for k := range n {
			r.Versions[k] = -1
			if k >= n/2 {
				r.Versions[k], r.Mask[k], r.Advantages[k] = 4, true, advantages[i]
			} else {
				r.Logprobs[k] = 0
			}
		}
		rows[i] = r
	}
	path := filepath.Join(t.TempDir(), id+".arrow")
	sum, err := trainerbridge.WriteBatch(path, rows)
	if err != nil {
		t.Fatal(err)
	}
	return trainerbridge.Batch{ID: id, Path: path, SHA256: sum}
}

func sequences() [][]int32 {
	out := make([][]int32, 6)
	for i := range out {
		for k := range 20 + 5*i {
			out[i] = append(out[i], int32((k*k*7+i*31)%290))
		}
	}
	return out
}

// trainedSum is the sum of the logprobs of the second half.
func trainedSum(logprobs []float32) (sum float64) {
	for _, l := range logprobs[len(logprobs)/2:] {
		sum += float64(l)
	}
	return sum
}

func mustScore(t *testing.T, s *server, sequences [][]int32) [][]float32 {
	t.Helper()
	out, err := s.Score(t.Context(), sequences)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantKind(t *testing.T, err error, kind milepost.Kind, words ...string) {
	t.Helper()
	if milepost.KindOf(err) != kind {
		t.Fatalf("error %v has kind %q, want %q", err, milepost.KindOf(err), kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestSupervisedLowersLoss(t *testing.T) {
	s := sharedServer(t)
	demos := writeDemonstrations(t, 40)
	initTiny(t, s, demos)
	config := trainerbridge.DefaultSFTConfig()
	config.Steps, config.BatchEpisodes, config.Warmup, config.Optimizer.LR = 12, 8, 2, 1e-2
	var seen []trainerbridge.SFTProgress
	last, err := s.Supervised(t.Context(), demos, config, func(p trainerbridge.SFTProgress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != 12 || !last.Done || last.Step != 12 || last.Demonstrations != 40 || last.LeftOut != 0 || last.TrainedTokens <= 0 {
		t.Fatalf("%d progress messages, last %+v", len(seen), last)
	}
	if seen[0].Loss < 4 || last.Loss > 0.6*seen[0].Loss {
		t.Errorf("loss went from %v to %v", seen[0].Loss, last.Loss)
	}

	ctx, cancel := context.WithCancel(t.Context())
	before := mustScore(t, s, sequences())
	_, err = s.Supervised(ctx, demos, trainerbridge.DefaultSFTConfig(), func(trainerbridge.SFTProgress) { cancel() })
	wantKind(t, err, milepost.KindCanceled)
	if got := mustScore(t, s, sequences()); !equal(before, got) {
		t.Error("a cancelled supervised run changed the weights")
	}
}

func equal(a, b [][]float32) bool { return slices.EqualFunc(a, b, slices.Equal[[]float32]) }

func TestUpdateMovesLogprobsTheRightWay(t *testing.T) {
	s := sharedServer(t)
	initTiny(t, s, writeDemonstrations(t, 40))
	seqs := sequences()
	before := mustScore(t, s, seqs)
	batch := batchOf(t, s, "b1", seqs, []float32{1, -1, 1, -1, 1, -1})
	config := trainerbridge.DefaultUpdateConfig()
	config.Optimizer.LR = 1e-2
	config.Loss.KL, config.Loss.KLCoefficient = "k3", 0.01
	m, err := s.Update(t.Context(), batch, config)
	if err != nil {
		t.Fatal(err)
	}
	if m.LogprobGapMax > 1e-5 || m.TrainedTokens != 99 || m.Tokens != 195 || m.OptimizerSteps != 1 || m.VersionMin != 4 || m.GradNorm <= 0 || m.Updates != 1 {
		t.Errorf("metrics %+v", m)
	}
	if math.Abs(m.RatioMean-1) > 1e-6 || math.Abs(m.KLReference) > 1e-9 || m.Entropy <= 1 {
		t.Errorf("metrics %+v", m)
	}
	for i, after := range mustScore(t, s, seqs) {
		moved := trainedSum(after) - trainedSum(before[i])
		if good := i%2 == 0; good != (moved > 0) {
			t.Errorf("sequence %d with advantage sign %v moved by %v", i, good, moved)
		}
	}
	reference, err := s.ScoreReference(t.Context(), seqs)
	if err != nil || !equal(reference, before) {
		t.Errorf("the reference changed: %v", err)
	}
	_, err = s.Update(t.Context(), batch, config)
	wantKind(t, err, milepost.KindConflict, "b1", "held")

	batch = batchOf(t, s, "b2", seqs, []float32{1, -1, 1, -1, 1, -1})
	config.Epochs, config.Minibatches, config.MicroTokens = 2, 3, 60
	if m, err = s.Update(t.Context(), batch, config); err != nil || m.OptimizerSteps != 6 || m.RatioMax <= m.RatioMin {
		t.Errorf("update of several steps: %+v, %v", m, err)
	}
}

func TestSaveLoadIsIdentical(t *testing.T) {
	s := sharedServer(t)
	model := initTiny(t, s, writeDemonstrations(t, 40))
	seqs, config := sequences(), trainerbridge.DefaultUpdateConfig()
	config.Minibatches = 2
	first := batchOf(t, s, "b1", seqs, []float32{1, -1, 1, -1, 1, -1})
	second := batchOf(t, s, "b2", seqs, []float32{-1, -1, 1, 1, 1, -1})
	if _, err := s.Update(t.Context(), first, config); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "checkpoint")
	saved, err := s.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), second, config); err != nil {
		t.Fatal(err)
	}
	want := mustScore(t, s, seqs)

	if _, err := s.Init(t.Context(), trainerbridge.InitRequest{Model: model, Seed: 99}); err != nil {
		t.Fatal(err)
	}
	loaded, err := s.Load(t.Context(), trainerbridge.LoadRequest{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if loaded.SHA256 != saved.SHA256 || loaded.Updates != 1 || !slices.Equal(loaded.BatchIDs, []string{"b1"}) {
		t.Fatalf("saved %+v, loaded %+v", saved, loaded)
	}
	if _, err := s.Update(t.Context(), second, config); err != nil {
		t.Fatal(err)
	}
	if got := mustScore(t, s, seqs); !equal(want, got) {
		t.Error("the update after a load differs from the update after the save")
	}

	if err := os.Remove(filepath.Join(dir, "COMMIT")); err != nil {
		t.Fatal(err)
	}
	_, err = s.Load(t.Context(), trainerbridge.LoadRequest{Dir: dir})
	wantKind(t, err, milepost.KindCorrupt, "COMMIT")
	_, err = s.Load(t.Context(), trainerbridge.LoadRequest{Dir: dir + "-none"})
	wantKind(t, err, milepost.KindNotFound, "does not exist")

	export := filepath.Join(t.TempDir(), "export")
	for range 2 { // the second replaces the first
		if _, err := s.Export(t.Context(), export); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Init(t.Context(), trainerbridge.InitRequest{Model: export}); err != nil {
		t.Fatal(err)
	}
	if got := mustScore(t, s, seqs); !equal(want, got) {
		t.Error("the exported model scores differently")
	}
	left, err := os.ReadDir(filepath.Dir(export))
	if err != nil || len(left) != 1 {
		t.Errorf("export left %v, %v", left, err)
	}
}

func TestBadInputIsRefusedAndChangesNothing(t *testing.T) {
	s := sharedServer(t)
	seqs, config := sequences(), trainerbridge.DefaultUpdateConfig()
	_, err := s.Init(t.Context(), trainerbridge.InitRequest{Model: "no/such/model"})
	wantKind(t, err, milepost.KindNotFound, "no/such/model", "config.json")
	initTiny(t, s, writeDemonstrations(t, 40))
	before := mustScore(t, s, seqs)
	good := batchOf(t, s, "good", seqs, []float32{1, -1, 1, -1, 1, -1})

	data, err := os.ReadFile(good.Path)
	if err != nil {
		t.Fatal(err)
	}
	bad := good
	bad.Path = filepath.Join(t.TempDir(), "bad.arrow")
	data[len(data)/2] ^= 1
	if err := os.WriteFile(bad.Path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(t.Context(), bad, config)
	wantKind(t, err, milepost.KindCorrupt, "bad.arrow", "SHA-256", good.SHA256)
	bad.Path += ".missing"
	_, err = s.Update(t.Context(), bad, config)
	wantKind(t, err, milepost.KindNotFound, "bad.arrow.missing")
	config.Loss.Loss = "pg"
	_, err = s.Update(t.Context(), good, config)
	wantKind(t, err, milepost.KindInvalid, "loss.loss", "ppo, gspo, cispo")
	_, err = s.Score(t.Context(), [][]int32{{1, 2, 5000}})
	wantKind(t, err, milepost.KindInvalid, "sequence 0", "vocabulary")
	_, err = s.Supervised(t.Context(), "no/demos.jsonl", trainerbridge.DefaultSFTConfig(), nil)
	wantKind(t, err, milepost.KindNotFound, "no/demos.jsonl")
	if got := mustScore(t, s, seqs); !equal(before, got) {
		t.Error("refused calls changed the weights")
	}
	if h, err := s.Health(t.Context()); err != nil || !h.Loaded || h.Updates != 0 || h.Memory <= 0 {
		t.Errorf("health %+v, %v", h, err)
	}
}

func TestKilledServerIsUnavailable(t *testing.T) {
	s := startServer(t)
	_, err := s.Score(t.Context(), sequences())
	wantKind(t, err, milepost.KindInvalid, "trainer: score", "no model is loaded")
	demos := writeDemonstrations(t, 40)
	initTiny(t, s, demos)
	killed := false
	_, err = s.Supervised(t.Context(), demos, trainerbridge.DefaultSFTConfig(), func(trainerbridge.SFTProgress) {
		if !killed {
			killed = true
			s.cmd.Process.Kill()
		}
	})
	wantKind(t, err, milepost.KindUnavailable)
	_, err = s.Health(t.Context())
	wantKind(t, err, milepost.KindUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = trainerbridge.Dial(ctx, "127.0.0.1:1")
	wantKind(t, err, milepost.KindUnavailable)
}

func TestShutdownEndsTheProcess(t *testing.T) {
	s := startServer(t)
	socket := strings.TrimPrefix(s.cmd.Args[5], "unix:")
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Errorf("the socket %s is left", socket)
	}
}

func TestPortInUseIsAClearError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python(t), "-m", "milepost_trainer", "serve", "--listen", taken.Addr().String())
	cmd.Dir = "python"
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "cannot listen on "+taken.Addr().String()) {
		t.Errorf("exit code %d, %v:\n%s", code, err, out)
	}
}
