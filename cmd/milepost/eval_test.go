package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// stubEndpoint is an OpenAI-compatible endpoint whose model writes m.py and submits. It counts conversations by the seed of
// their first turn, which names the attempt.
type stubEndpoint struct {
	*httptest.Server
	mu     sync.Mutex
	opened map[string]int
	asked  int
	wait   time.Duration
	spoil  func(asked int, w http.ResponseWriter) bool // answers in the endpoint's place; may be nil
}

func newStubEndpoint(t *testing.T, wait time.Duration, spoil func(int, http.ResponseWriter) bool) *stubEndpoint {
	s := &stubEndpoint{opened: map[string]int{}, wait: wait, spoil: spoil}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *stubEndpoint) serve(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Seed     json.Number `json:"seed"`
		Messages []struct {
			Role string `json:"role"`
		} `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	turn := 0
	for _, m := range req.Messages {
		if m.Role == "assistant" {
			turn++
		}
	}
	s.mu.Lock()
	s.asked++
	asked := s.asked
	if turn == 0 {
		s.opened[req.Seed.String()]++
	}
	s.mu.Unlock()
	if s.spoil != nil && s.spoil(asked, w) {
		return
	}
	time.Sleep(s.wait)
	call := `{"name":"edit_file","arguments":"{\"command\":\"create\",\"path\":\"m.py\",\"text\":\"more\\n\"}"}`
	if turn > 0 {
		call = `{"name":"submit","arguments":"{}"}`
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":"","tool_calls":[{"id":"c%d","type":"function","function":%s}]},"finish_reason":"tool_calls"}],
		"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":40}}}`, turn, call)
}

// evalArgs evaluates a set against an endpoint.
func evalArgs(url, tasks, out string, more ...string) []string {
	return append([]string{"eval", "-c", "quickstart", "--tasks", tasks, "--chat", url, "--chat-model", "stub", "--out", out, "--samples", "3",
		"--set", "tasks.certificates=ignore", "--set", "schedule.concurrency=2", "--set", "eval.prices={input: 2, output: 10, cached: 1}", "--set", "policy.chat.backoff={base: 5ms, max: 20ms}",
		"--set", "policy.chat.retries=2"}, more...)
}

func evalSet(t *testing.T, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tasks")
	var tasks []*milepost.Task
	for i := range n {
		tasks = append(tasks, repairTask(t, fmt.Sprintf("t%d", i), "pass"))
	}
	if err := benchmarks.Save(dir, tasks); err != nil {
		t.Fatal(err)
	}
	return dir
}

// attemptsOf lists the attempts that a journal has, by id; nil while there is none.
func attemptsOf(dir string) map[string]bool {
	h, err := evaluate.ReadJournal(filepath.Join(dir, evalJournalFile))
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for _, r := range h.Records {
		out[r.ID] = true
	}
	return out
}

// TestEvalSurvivesKill: an evaluation killed in the middle and resumed makes every attempt once more than the journal
// had it, those that were finished not again, and leaves nothing running and no scratch folder.
func TestEvalSurvivesKill(t *testing.T) {
	needSandbox(t)
	endpoint, set := newStubEndpoint(t, 40*time.Millisecond, nil), evalSet(t, 4)
	dir := filepath.Join(t.TempDir(), "e")
	mark := "eval-" + filepath.Base(filepath.Dir(filepath.Dir(dir)))
	p := startProcess(t, mark, evalArgs(endpoint.URL, set, dir)...)
	p.until("five attempts", 2*time.Minute, func() bool { return len(attemptsOf(dir)) >= 5 })
	p.kill()
	p.wait(10 * time.Second)
	before := attemptsOf(dir)
	if len(before) < 5 || len(before) >= 12 {
		t.Fatalf("%d of 12 attempts were finished when it was killed", len(before))
	}
	endpoint.mu.Lock()
	opened := map[string]int{}
	for s, n := range endpoint.opened {
		opened[s] = n
	}
	endpoint.mu.Unlock()

	p = startProcess(t, mark, "eval", "--resume", dir, "--json")
	if code := p.wait(2 * time.Minute); code != exitDone {
		t.Fatalf("exit code %d: %s", code, p.out.String())
	}
	nothingLeft(t, mark, dir)
	endpoint.mu.Lock()
	defer endpoint.mu.Unlock()
	again := 0
	for s, n := range endpoint.opened {
		if n > 1 {
			again++ // it was under way when the process was killed
		}
		if n > 2 || opened[s] == 0 && n != 1 {
			t.Errorf("the attempt of seed %s was made %d times", s, n)
		}
	}
	if after := attemptsOf(dir); len(after) != 12 || len(endpoint.opened) != 12 || again > len(opened)-len(before) {
		t.Errorf("%d attempts finished, %d seeds, %d made again though only %d were under way", len(after), len(endpoint.opened), again, len(opened)-len(before))
	}
	checkKilledResult(t, dir)
}

// checkKilledResult reads what the resumed evaluation wrote.
func checkKilledResult(t *testing.T, dir string) {
	t.Helper()
	r, err := evaluate.ReadResult(dir)
	if err != nil {
		t.Fatal(err)
	}
	const each = (120*2 + 80*1 + 10*10) / 1e6
	if r.Graded != 12 || r.Infra != 0 || r.Rate != 1 || r.Sessions != 2 || r.Active <= 0 || r.Cost == nil || r.Cost.Each < each*.999 || r.Cost.Each > each*1.001 ||
		r.Identity.Model != "stub" || r.Identity.Scaffold.ToolFormat != "native" {
		t.Errorf("result %+v, cost %+v", r, r.Cost)
	}
	if _, err := os.Stat(filepath.Join(dir, evalWorkDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch folder is still there: %v", err)
	}
	for a := range 3 {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("predictions-attempt-%d.jsonl", a)))
		if err != nil {
			t.Fatal(err)
		}
		list, err := predictions.Read(bytes.NewReader(b), "p")
		if err != nil || len(list) != 4 || list[0].Patch == nil || !strings.Contains(*list[0].Patch, "+more") {
			t.Errorf("predictions %d: %+v, %v, %s", a, list, err, b)
		}
	}
}

// TestEvalEndpointTroubles: an endpoint that is busy, cuts answers short, refuses, or does not have the model.
func TestEvalEndpointTroubles(t *testing.T) {
	needSandbox(t)
	set := evalSet(t, 1)
	for name, c := range map[string]struct {
		spoil func(int, http.ResponseWriter) bool
		more  []string
		code  int
		says  string
	}{
		"busy, then cut short": {func(asked int, w http.ResponseWriter) bool {
			switch asked {
			case 1, 3:
				http.Error(w, `{"error":{"message":"slow down"}}`, http.StatusTooManyRequests)
			case 4:
				w.Header().Set("Content-Length", "1000")
				fmt.Fprint(w, `{"choices":[`)
			default:
				return false
			}
			return true
		}, nil, exitDone, "pass@3"},
		"down, then up": {func(asked int, w http.ResponseWriter) bool {
			if asked <= 7 {
				http.Error(w, "down", http.StatusBadGateway)
			}
			return asked <= 7
		}, []string{"--set", "schedule.concurrency=1"}, exitDone, "losses made good"},
		"never up": {func(_ int, w http.ResponseWriter) bool {
			http.Error(w, "down", http.StatusBadGateway)
			return true
		}, []string{"--set", "eval.give_up=2", "--set", "schedule.concurrency=1"}, exitFailed, "infrastructure lost the last 2 attempts (eval.give_up); the last, t0/1, to endpoint: unavailable"},
		"no such model": {func(_ int, w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"message":"The model stub does not exist","type":"NotFoundError","code":404}}`)
			return true
		}, nil, exitFailed, "the model cannot be used: policy: chat: "},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := newStubEndpoint(t, 0, c.spoil)
			code, said := command(t, evalArgs(endpoint.URL, set, filepath.Join(t.TempDir(), "e"), c.more...)...)
			if code != c.code || !strings.Contains(said, c.says) {
				t.Errorf("exit code %d, want %d with %q; it said:\n%s", code, c.code, c.says, said)
			}
		})
	}
}

// TestEvalNamesWhatIsWrong: faults in flags, configuration and the resumed folder.
func TestEvalNamesWhatIsWrong(t *testing.T) {
	needSandbox(t)
	set, dir := evalSet(t, 1), filepath.Join(t.TempDir(), "e")
	idle := []string{"eval", "--tasks", set, "--script", "idle", "--samples", "1", "--set", "tasks.certificates=ignore", "--set", "run.dir=" + t.TempDir()}
	if code, said := command(t, append(idle, "--out", dir)...); code != exitDone || !strings.Contains(said, "pass@1  1.000") {
		t.Fatalf("exit code %d: %s", code, said)
	}
	other := evalSet(t, 2)
	for want, c := range map[string]struct {
		args []string
		code int
	}{
		"-k 5: there are 1 attempts at each task; allowed are 1 to 1": {append(idle, "-k", "1,5"), exitUsage},
		"prices.output: missing":                                        {append(idle, "--set", "eval.prices.input=3"), exitUsage},
		"holds an evaluation; go on with it by --resume":                {append(idle, "--out", dir), exitFailed},
		"holds a task set; allowed: a folder of its own":                {append(idle, "--out", set), exitUsage},
		"this is the folder of another evaluation: dataset.fingerprint": {[]string{"eval", "--resume", dir, "--tasks", other}, exitFailed},
		`model: "script-idle", now "script-reference"`:                  {[]string{"eval", "--resume", dir, "--script", "reference"}, exitFailed},
		"holds no evaluation: eval.json is not there":                   {[]string{"eval", "--resume", set}, exitFailed},
		"--ids: the task set has no task nope":                          {append(idle, "--ids", "nope"), exitUsage},
		`--select "hidden" is not visible`:                              {append(idle, "--select", "hidden"), exitUsage},
		"-k 2: there are 1 attempts in common":                          {[]string{"eval", "compare", dir, dir, "-k", "2"}, exitUsage},
		"does not exist; an evaluation writes it when it ends":          {[]string{"eval", "compare", dir, set}, exitFailed},
	} {
		if code, said := command(t, c.args...); code != c.code || !strings.Contains(said, want) {
			t.Errorf("%v: exit code %d, want %d with %q; it said: %s", c.args, code, c.code, want, said)
		}
	}
	unborn := filepath.Join(t.TempDir(), "unborn")
	if code, said := command(t, append(idle, "--ids", "nope", "--out", unborn)...); code != exitUsage {
		t.Errorf("exit code %d: %s", code, said)
	}
	if _, err := os.Stat(unborn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an evaluation that never began left its folder: %v", err)
	}
	if code, said := command(t, "eval", "--resume", dir, "--samples", "2"); code != exitDone || !strings.Contains(said, "2 attempts graded") {
		t.Errorf("more attempts: exit code %d: %s", code, said)
	}
	if code, said := command(t, "eval", "compare", dir, dir); code != exitDone || !strings.Contains(said, "1 common tasks") {
		t.Errorf("compare: exit code %d: %s", code, said)
	}
}
