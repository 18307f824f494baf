package tracker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// fakeEnv makes the test binary a tracker's process; its value says how it behaves.
const fakeEnv = "MILEPOST_TEST_TRACKER"

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeEnv); how != "" {
		os.Exit(fake(how))
	}
	os.Exit(m.Run())
}

// fake keeps what it is given in DIR/got, as trackers.py would: "dies N" exits before the N-th line of each start, "stays" never
// ends, "hangs" never answers, "refuses" fails at the start.
func fake(how string) int {
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	var hello struct{ Dir, Tracker string }
	if json.Unmarshal(in.Bytes(), &hello) != nil {
		return 3
	}
	if how == "refuses" {
		fmt.Println(`{"error":"no route to host"}`)
		return 1
	}
	place := filepath.Join(hello.Dir, hello.Tracker+".offset")
	b, _ := os.ReadFile(place) // absent at first
	at, _ := strconv.ParseInt(string(b), 10, 64)
	if how == "hangs" {
		select {}
	}
	fmt.Printf("{\"ready\":%d}\n", at)
	for n := 1; in.Scan(); n++ {
		if how == "dies "+strconv.Itoa(n) {
			return 2
		}
		var line struct {
			End  int64
			Step int
		}
		f, err := os.OpenFile(filepath.Join(hello.Dir, hello.Tracker+".got"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if json.Unmarshal(in.Bytes(), &line) != nil || err != nil {
			return 3
		}
		fmt.Fprintln(f, line.Step)
		if errors.Join(f.Close(), os.WriteFile(place, []byte(strconv.FormatInt(line.End, 10)), 0o644)) != nil {
			return 3
		}
		fmt.Printf("{\"done\":%d}\n", line.End)
	}
	if how == "stays" {
		select {}
	}
	return 0
}

// trial is a run folder whose metrics are fed to fakes.
type trial struct {
	t      *testing.T
	folder *orchestrator.Folder
	mu     sync.Mutex
	said   []string
}

func newTrial(t *testing.T) *trial {
	t.Helper()
	f := &orchestrator.Folder{Dir: t.TempDir()}
	if err := os.Mkdir(f.Path("logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &trial{t: t, folder: f}
}

func (r *trial) warn(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, err.Error())
}

func (r *trial) warnings() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.said, "\n")
}

func (r *trial) start(cfg Config, how string) *Feeds {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	f, err := Start(cfg, Run{Folder: r.folder, ID: "id", Name: "n", Command: []string{self}, Env: append(os.Environ(), fakeEnv+"="+how), Warn: r.warn})
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// record appends lines of the updates as a run does.
func (r *trial) record(f *Feeds, updates ...int) {
	r.t.Helper()
	file, err := os.OpenFile(r.folder.Path("metrics.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		r.t.Fatal(err)
	}
	defer file.Close()
	for _, u := range updates {
		line := orchestrator.MetricsLine{Update: u, Part: orchestrator.PartUpdate, Time: time.Unix(1700000000, 5e8).UTC(), Values: map[string]float64{"loss": .1 * float64(u), "time_update_s": 2}}
		if err := json.NewEncoder(file).Encode(line); err != nil {
			r.t.Fatal(err)
		}
		began := time.Now()
		f.Recorded(line)
		if took := time.Since(began); took > 100*time.Millisecond {
			r.t.Errorf("the run waited %s for a tracker", took)
		}
	}
}

// got is what a tracker has, as text.
func (r *trial) got(name string) string {
	b, _ := os.ReadFile(r.folder.Path("trackers", name+".got")) // absent where it has nothing
	return strings.Join(strings.Fields(string(b)), " ")
}

func (r *trial) wait(what string, ok func() bool) {
	r.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("waiting for %s: got %q, said %q", what, r.got("wandb"), r.warnings())
}

func only(name string) Config {
	c := Default()
	c.WandB.Enabled, c.MLflow.Enabled, c.Trackio.Enabled = name == "wandb" || name == "all", name == "mlflow" || name == "all", name == "trackio" || name == "all"
	return c
}

// TestFeedDeliversOnce: each line arrives once and in order, over a process that dies again and again, an end of the run, and the
// next start; a torn line is no line until it is whole.
func TestFeedDeliversOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	r := newTrial(t)
	f := r.start(only("wandb"), "dies 3")
	r.record(f, 0, 1, 2, 3)
	r.wait("a second process", func() bool { return r.got("wandb") == "0 1 2 3" })
	if n := f.Warnings()["wandb"]; n < 1 || !strings.Contains(r.warnings(), "tracker wandb: ") || !strings.Contains(r.warnings(), "the run goes on") {
		t.Errorf("%d warnings, said %q", n, r.warnings())
	}
	f.Close()
	f = r.start(only("wandb"), "well")
	r.record(f, 4)
	if err := os.WriteFile(r.folder.Path("torn"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(r.folder.Path("metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"update":5,"val`); err != nil {
		t.Fatal(err)
	}
	f.Recorded(orchestrator.MetricsLine{})
	r.wait("update 4", func() bool { return r.got("wandb") == "0 1 2 3 4" })
	if _, err := file.WriteString("\n"); err != nil { // what a resumed run does with it
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	r.record(f, 5)
	f.Close() // takes what is there first
	if got := r.got("wandb"); got != "0 1 2 3 4 5" {
		t.Errorf("delivered %s; said %s", got, r.warnings())
	}
}

// TestFeedNeverHoldsUp: trackers that hang, refuse or are missing cost the run nothing but the grace at its end, and who is behind
// is told; the others get everything.
func TestFeedNeverHoldsUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	for how, says := range map[string]string{"hangs": "2 lines of metrics.jsonl were not delivered", "refuses": "no route to host"} {
		r := newTrial(t)
		cfg := only("all")
		cfg.Grace = 300 * time.Millisecond
		f := r.start(cfg, how)
		r.record(f, 1, 2)
		if how == "refuses" {
			r.wait("a warning", func() bool { return f.Warnings()["mlflow"] > 0 && f.Warnings()["trackio"] > 0 })
		}
		began := time.Now()
		f.Close()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: closing took %s", how, took)
		}
		if !strings.Contains(r.warnings(), says) || !strings.Contains(r.warnings(), "tracker trackio: 2 lines") {
			t.Errorf("%s: said %q", how, r.warnings())
		}
	}
	r := newTrial(t)
	cfg := only("wandb")
	cfg.Grace = 2 * time.Second
	stays := r.start(cfg, "stays")
	r.record(stays, 1)
	r.wait("its line", func() bool { return r.got("wandb") == "1" })
	stays.Close()
	if !strings.Contains(r.warnings(), "did not end within trackers.grace") {
		t.Errorf("said %q", r.warnings())
	}
	r = newTrial(t)
	f, err := Start(only("wandb"), Run{Folder: r.folder, Command: []string{"/does/not/exist"}, Warn: r.warn})
	if err != nil {
		t.Fatal(err)
	}
	r.wait("a warning", func() bool { return strings.Contains(r.warnings(), "/does/not/exist") })
	f.Close()
}

// TestTrackersStore: the three packages themselves store every value once, under one run, over two starts; no key and no
// password of the environment is in what they or the run write.
func TestTrackersStore(t *testing.T) {
	env, err := trainerbridge.Environment(trainerbridge.EnvTrackers)
	if err != nil {
		t.Skip(err)
	}
	path, err := trainerbridge.PythonPath()
	if err != nil {
		t.Fatal(err)
	}
	r := newTrial(t)
	dir := r.folder.Path("trackers")
	const secret = "0123456789012345678901234567890123456789"
	own := append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1", "TRACKIO_DIR="+filepath.Join(dir, "trackio-store"), "WANDB_API_KEY="+secret, "MLFLOW_TRACKING_PASSWORD="+secret, "HF_TOKEN="+secret)
	cfg := only("all")
	cfg.WandB.Mode, cfg.Grace = "offline", 2*time.Minute
	for start := range 2 {
		f, err := Start(cfg, Run{Folder: r.folder, ID: "R4ND0M", Name: "trial", Config: map[string]any{"update": map[string]any{"lr": 1e-3}}, Command: []string{filepath.Join(env, "bin", "python"), "-m", "milepost_trainer.trackers"}, Env: own, Warn: r.warn})
		if err != nil {
			t.Fatal(err)
		}
		r.record(f, 2*start, 2*start+1)
		f.Close()
	}
	if said := r.warnings(); said != "" {
		t.Error(said)
	}
	read := exec.Command(filepath.Join(env, "bin", "python"), "testdata/readback.py", dir, "milepost")
	read.Env, read.Stderr = own, os.Stderr
	out, err := read.Output()
	if err != nil {
		t.Fatal(err)
	}
	var stored map[string][]struct {
		ID     string
		Config map[string]any
		Points [][3]any
	}
	if err := json.Unmarshal(out, &stored); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var want []string
	for u := range 4 {
		want = append(want, fmt.Sprint([3]any{"update/loss", float64(u), .1 * float64(u)}), fmt.Sprint([3]any{"time/time_update_s", float64(u), 2.}))
	}
	slices.Sort(want)
	for name, id := range map[string]string{"wandb": "R4ND0M", "mlflow": "R4ND0M", "trackio": "trial-R4ND0M"} {
		runs := stored[name]
		if len(runs) != 1 || runs[0].ID != id {
			t.Errorf("%s has the runs %+v, want one of id %s", name, runs, id)
			continue
		}
		var got []string
		for _, p := range runs[0].Points {
			got = append(got, fmt.Sprint(p))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
		if text := fmt.Sprint(runs[0].Config); !strings.Contains(text, "lr:0.001") && !strings.Contains(text, "update.lr:0.001") {
			t.Errorf("%s: configuration %s", name, text)
		}
	}
	if found, err := exec.Command("grep", "-rlF", secret, r.folder.Dir).CombinedOutput(); err == nil {
		t.Errorf("a secret stands in %s", found)
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil || Default().Any() {
		t.Error(err)
	}
	for says, change := range map[string]func(*Config){
		"grace":              func(c *Config) { c.Grace = -1 },
		"online, offline":    func(c *Config) { c.WandB.Mode = "on" },
		"wandb.project":      func(c *Config) { c.WandB.Project = "a/b" },
		"mlflow.uri: parse":  func(c *Config) { c.MLflow.URI = "http://a b" },
		"TRACKING_PASSWORD":  func(c *Config) { c.MLflow.URI = "https://me:secret@host" },
		"mlflow.experiment ": func(c *Config) { c.MLflow.Experiment = "" },
		"trackio.project":    func(c *Config) { c.Trackio.Project = "" },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", says, err)
		}
	}
}
