package orchestrator

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	milepost "github.com/milepost-rl/milepost"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden scenarios")

// TestScenarios plays testdata/scenarios/*.txt: lines that begin with "> " are events, the lines below are what the
// machine answers; "> resume" feeds a new machine with the events so far. Run with -rewrite to record answers anew, then read the difference.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios (%v)", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("the machine answers otherwise (-rewrite records):\n%s", got)
			}
		})
	}
}

func play(t *testing.T, text string) string {
	cfg := DefaultConfig()
	tasks := Tasks{}
	var m *Machine
	var log []Event
	var out bytes.Buffer
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "#"), line == "":
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "config "):
			fmt.Fprintln(&out, line)
			for _, f := range strings.Fields(line)[1:] {
				setScenarioField(t, &cfg, &tasks, f)
			}
		case line == "> resume": // a new machine is fed with the events so far
			fmt.Fprintln(&out, line)
			var err error
			if m, err = NewMachine(cfg, tasks, 1); err != nil {
				t.Fatal(err)
			}
			for _, e := range log {
				if _, err := m.Step(e); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range m.Outstanding() {
				fmt.Fprintf(&out, "  outstanding: %s, cancelled %v\n", describe(c), c.Cancelled)
			}
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			if m == nil {
				var err error
				if m, err = NewMachine(cfg, tasks, 1); err != nil {
					t.Fatal(err)
				}
			}
			e := parseEvent(t, line[2:])
			cs, err := m.Step(e)
			if err == nil {
				log = append(log, e)
			}
			for _, c := range cs {
				fmt.Fprintln(&out, "  "+describe(c))
			}
			if err != nil {
				fmt.Fprintln(&out, "  error: "+err.Error())
			}
			best, rate := m.Best()
			fmt.Fprintf(&out, "  [%s] update %d, serving v%d, best v%d at %g, %d outstanding\n", m.Phase(), m.Update(), m.Version(), best, rate, len(m.Outstanding()))
		}
	}
	return out.String()
}

func setScenarioField(t *testing.T, cfg *Config, tasks *Tasks, field string) {
	k, v, _ := strings.Cut(field, "=")
	n, _ := strconv.Atoi(v)
	switch k {
	case "groups":
		cfg.GroupsPerUpdate = n
	case "mode":
		cfg.Mode = v
	case "max_staleness":
		cfg.Async.MaxStaleness = n
	case "on_stale":
		cfg.Async.OnStale = v
	case "concurrency":
		cfg.Concurrency = n
	case "size":
		cfg.GroupSize = n
	case "updates":
		cfg.MaxUpdates = n
	case "eval_every":
		cfg.EvalEvery = n
	case "patience":
		cfg.Patience = n
	case "retries":
		cfg.MaxRetries = n
	case "replace":
		cfg.Sampling.Replace = v == "true"
	case "oversample":
		cfg.Sampling.Oversample, _ = strconv.ParseFloat(v, 64)
	case "max_groups":
		cfg.Sampling.MaxGroups = n
	case "easy_after":
		cfg.Sampling.EasyAfter = n
	case "hard_after":
		cfg.Sampling.HardAfter = n
	case "samples":
		cfg.EvalSamples, cfg.ValidationSamples = n, n
	case "train":
		tasks.Train = strings.Split(v, ",")
	case "validation":
		tasks.Validation = strings.Split(v, ",")
	case "heldout":
		tasks.Heldout = strings.Split(v, ",")
	default:
		t.Fatalf("scenario field %q", k)
	}
}

func parseEvent(t *testing.T, line string) Event {
	f := strings.Fields(line)
	e := Event{Type: EventType(f[0])}
	for _, kv := range f[1:] {
		k, v, _ := strings.Cut(kv, "=")
		switch k {
		case "episode":
			e.Episode = v
		case "status":
			e.Status = milepost.EpisodeStatus(v)
		case "eval":
			e.Eval = v
		case "rate":
			e.Rate, _ = strconv.ParseFloat(v, 64)
			e.Graded = 1
		case "group":
			e.Group = v
		case "kept":
			e.Kept = v == "true"
		case "cancelled":
			e.Cancelled = v == "true"
		case "rows":
			e.Rows, _ = strconv.Atoi(v)
		case "update":
			e.Update, _ = strconv.Atoi(v)
		case "oldest":
			n, _ := strconv.Atoi(v)
			e.Oldest = int32(n)
		case "newest":
			n, _ := strconv.Atoi(v)
			e.Newest = int32(n)
		case "version":
			n, _ := strconv.Atoi(v)
			e.Version = int32(n)
		default:
			t.Fatalf("event field %q", k)
		}
	}
	return e
}

// describeSampled says what a finalise command tells of dynamic sampling.
func describeSampled(s *Sampled) string {
	if s == nil {
		return ""
	}
	text := ": "
	for _, id := range slices.Sorted(maps.Keys(s.Fates)) {
		text += fmt.Sprintf("%s %s, ", id, s.Fates[id])
	}
	text += fmt.Sprintf("rounds %d, retired %d", s.Rounds, s.Retired)
	if s.Short != "" {
		text += ", " + s.Short
	}
	return text
}

func describe(c Command) string {
	switch c.Type {
	case CommandEpisode:
		return fmt.Sprintf("episode %s task=%s seed=%d", c.Episode.ID, c.Episode.Task, c.Episode.Seed%1000)
	case CommandFinalise:
		from := ""
		if c.Base > 0 {
			from = fmt.Sprintf(" from v%d", c.Base)
		}
		return fmt.Sprintf("%s%s of %d episodes", c.Key(), from, len(c.Episodes)) + describeSampled(c.Sampling)
	case CommandEvaluate, CommandJudge, CommandClose:
		return fmt.Sprintf("%s of %d episodes", c.Key(), len(c.Episodes)) + describeSampled(c.Sampling)
	case CommandCancel:
		return "cancel " + strings.Join(c.Keys, ", ")
	case CommandPush:
		return fmt.Sprintf("push v%d load=%v", c.Version, c.Load)
	case CommandStop:
		return "stop: " + c.Reason
	}
	return string(c.Type)
}

// TestMachineInvariants explores random interleavings: episodes end in any order, fail, batches lack signal.
func TestMachineInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := DefaultConfig()
		cfg.GroupsPerUpdate = rapid.IntRange(1, 3).Draw(rt, "groups")
		cfg.GroupSize = rapid.IntRange(1, 3).Draw(rt, "size")
		cfg.MaxUpdates = rapid.IntRange(0, 4).Draw(rt, "updates")
		cfg.EvalEvery = rapid.IntRange(0, 2).Draw(rt, "eval")
		cfg.Patience = rapid.IntRange(0, 2).Draw(rt, "patience")
		cfg.MaxRetries = rapid.IntRange(0, 2).Draw(rt, "retries")
		cfg.EvalSamples = 1
		tasks := Tasks{Train: []string{"a", "b"}}
		if rapid.Bool().Draw(rt, "validation") {
			tasks.Validation = []string{"v"}
		}
		if rapid.Bool().Draw(rt, "heldout") {
			tasks.Heldout = []string{"h", "i"}
		}
		m, err := NewMachine(cfg, tasks, 7)
		if err != nil {
			rt.Fatal(err)
		}
		var log []Event
		step := func(e Event) []Command {
			log = append(log, e)
			cs, err := m.Step(e)
			if err != nil {
				rt.Fatalf("%+v: %v", e, err)
			}
			return cs
		}
		stops, dispatched, trained, served := 0, map[string]bool{}, map[int]bool{}, int32(0)
		note := func(cs []Command) {
			for _, c := range cs {
				switch c.Type {
				case CommandStop:
					stops++
				case CommandEpisode:
					if dispatched[c.Episode.ID] {
						rt.Fatalf("episode %s dispatched twice", c.Episode.ID)
					}
					dispatched[c.Episode.ID] = true
					if m.Version() != served {
						rt.Fatal("sampling under weights that were not pushed")
					}
				case CommandTrain:
					if trained[c.Update] {
						rt.Fatalf("update %d trained twice", c.Update)
					}
					trained[c.Update] = true
				}
			}
		}
		note(step(Event{Type: EventStarted, Epoch: 1}))
		for n := 0; m.Phase() != PhaseDone; n++ {
			out := m.Outstanding()
			if len(out) == 0 || n > 2000 {
				rt.Fatalf("nothing outstanding in phase %s after %d events", m.Phase(), n)
			}
			c := out[rapid.IntRange(0, len(out)-1).Draw(rt, "which")]
			e := answerTo(c, rapid.IntRange(0, 3).Draw(rt, "luck"))
			if e.Type == EventPushed {
				served = e.Version
			}
			note(step(e))
			if _, err := m.Step(e); milepost.KindOf(err) != milepost.KindConflict {
				rt.Fatalf("the same event again: %v", err)
			}
		}
		if stops != 1 || len(m.Outstanding()) != 0 {
			rt.Fatalf("%d stops, %d outstanding at the end", stops, len(m.Outstanding()))
		}
		again, _ := NewMachine(cfg, tasks, 7)
		for _, e := range log {
			if _, err := again.Step(e); err != nil {
				rt.Fatalf("replay: %v", err)
			}
		}
		if again.Phase() != m.Phase() || again.Version() != m.Version() || again.Update() != m.Update() {
			rt.Fatal("replaying the events gives another state")
		}
	})
}

func answerTo(c Command, luck int) Event {
	switch c.Type {
	case CommandEpisode:
		status := milepost.EpisodeCompleted
		if luck == 0 {
			status = milepost.EpisodeInfra
		}
		return Event{Type: EventEpisodeEnded, Episode: c.Episode.ID, Status: status}
	case CommandEvaluate:
		return Event{Type: EventEvaluated, Eval: c.Eval, Rate: float64(luck) / 3, Graded: luck}
	case CommandFinalise:
		return Event{Type: EventFinalised, Update: c.Update, Rows: luck}
	case CommandTrain:
		return Event{Type: EventTrained, Update: c.Update}
	}
	return Event{Type: EventPushed, Version: c.Version}
}
