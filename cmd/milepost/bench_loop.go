package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// The loops that the bench measures beside each other.
const (
	loopMilepost = "milepost"
	loopScripted = "mini-swe-agent, scripted" // its scripted model, which sleeps: no HTTP at all
	loopLitellm  = "mini-swe-agent, litellm"  // its usual model against the stub
)

//go:embed bench_minisweagent.py
var miniSweAgent []byte

// loopRow is what one loop cost with so many episodes at once.
type loopRow struct {
	Loop     string      `json:"loop"`
	Episodes int         `json:"episodes"`
	Turns    int         `json:"turns"` // of each episode
	Costs    loopFigures `json:"costs"`
	Memory   loopFigures `json:"memory"` // of a second run, in which all episodes are held
}

// cpuPerTurn is in milliseconds.
func (r loopRow) cpuPerTurn() float64 { return r.Costs.CPU / float64(r.Costs.Turns) * 1000 }

// perEpisode is the memory of a waiting episode beyond that of the idle process, in kB.
func (r loopRow) perEpisode(rss int64) float64 {
	return float64(rss-r.Memory.Before) / float64(r.Episodes) / 1000
}

// makeLoopScript is what each episode does: it reads and edits a file in turns, and submits.
func makeLoopScript(turns int) (s loopScript, err error) {
	set, err := loopTools()
	if err != nil {
		return s, err
	}
	const thought = "I look at the function that the report names and compare what it returns with what it should return, then change one line."
	value := "value + 0"
	for i := range turns {
		call := toolcall.Call{Name: "read_file", Arguments: json.RawMessage(`{"path":"pkg/core.py","start":1,"end":30}`)}
		command := "sed -n 1,30p pkg/core.py"
		switch {
		case i == turns-1:
			call, command = toolcall.Call{Name: "submit", Arguments: json.RawMessage(`{}`)}, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
		case i%2 == 1:
			next := fmt.Sprintf("value + %d000", i)
			call = toolcall.Call{Name: "edit_file", Arguments: json.RawMessage(fmt.Sprintf(`{"command":"replace","path":"pkg/core.py","old":"def f00(value):\n    return %s\n","new":"def f00(value):\n    return %s\n"}`, value, next))}
			command, value = fmt.Sprintf("sed -i 's/%s/%s/' pkg/core.py", value, next), next
		}
		text, err := set.Render(call)
		if err != nil {
			return s, err
		}
		s.Texts, s.Thoughts, s.Commands = append(s.Texts, thought+"\n"+text), append(s.Thoughts, thought), append(s.Commands, command)
	}
	lines := strings.SplitAfter(string(loopRepo()[0].Data), "\n")
	s.Observed = strings.Join(lines[:30], "")
	return s, nil
}

// loopTools is the format of calls that loopConfig chooses.
func loopTools() (toolcall.Format, error) { return toolcall.New(loopConfig().ToolFormat, nil) }

// benchLoops measures every loop with every number of episodes, each in processes of its own, one after the other.
func benchLoops(ctx context.Context, o benchOptions, p *progress) (rows []loopRow, err error) {
	if !slices.ContainsFunc(o.Loop, isMeasured) {
		return nil, nil
	}
	script, err := makeLoopScript(o.LoopTurns)
	if err != nil {
		return nil, err
	}
	b := loopBench{o: o, script: filepath.Join(o.Dir, "script.json")}
	text, err := json.Marshal(script)
	if err == nil {
		err = os.WriteFile(b.script, text, 0o644)
	}
	if err != nil {
		return nil, milepost.Wrap("bench: loop", milepost.KindUnavailable, err)
	}
	python, err := trainerbridge.Environment(trainerbridge.EnvBench)
	if err != nil {
		p.line("mini-swe-agent is not measured: %v", err)
	}
	for _, loop := range []string{loopMilepost, loopScripted, loopLitellm} {
		counts := o.Loop
		switch {
		case loop != loopMilepost && err != nil:
			continue
		case loop == loopLitellm:
			counts = o.LoopPeer
		}
		for _, n := range counts {
			if !isMeasured(n) {
				continue
			}
			row, err := b.measure(ctx, loop, n, filepath.Join(python, "bin", "python"))
			if err != nil {
				return rows, err
			}
			p.line("%s, %d episodes at once: %.2f ms of processor a turn, %.0f kB a waiting episode", loop, n, row.cpuPerTurn(), row.perEpisode(row.Memory.Held))
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// isMeasured tells a number of episodes from the 0 that stands for none.
func isMeasured(episodes int) bool { return episodes > 0 }

// loopBench is what the measurements share.
type loopBench struct {
	o      benchOptions
	script string
	n      int
}

// measure runs a loop twice: once for its time, once for the memory of episodes that all wait.
func (b *loopBench) measure(ctx context.Context, loop string, episodes int, python string) (row loopRow, err error) {
	row = loopRow{Loop: loop, Episodes: episodes, Turns: b.o.LoopTurns}
	if row.Costs, err = b.one(ctx, loop, episodes, python, false); err != nil {
		return row, err
	}
	if row.Memory, err = b.one(ctx, loop, episodes, python, true); err != nil {
		return row, err
	}
	if got, want := row.Costs.Turns, episodes*b.o.LoopTurns; got != want {
		return row, milepost.E("bench: loop", milepost.KindInternal, "%s: %d turns, want %d", loop, got, want)
	}
	return row, nil
}

// one starts a stub and a process of the loop, and returns what that measured.
func (b *loopBench) one(ctx context.Context, loop string, episodes int, python string, memory bool) (got loopFigures, err error) {
	b.n++
	dir := filepath.Join(b.o.Dir, "loop"+strconv.Itoa(b.n))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return got, milepost.Wrap("bench: loop", milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	url, stop, err := b.stub(ctx, episodes, memory)
	if err != nil {
		return got, err
	}
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return got, milepost.Wrap("bench: loop", milepost.KindInternal, err)
	}
	argv := []string{self, "bench", "agents", "--endpoint", url, "--episodes", strconv.Itoa(episodes), "--dir", dir, fmt.Sprint("--memory=", memory)}
	if loop != loopMilepost {
		program := filepath.Join(dir, "loop.py")
		if err := os.WriteFile(program, miniSweAgent, 0o644); err != nil {
			return got, milepost.Wrap("bench: loop", milepost.KindUnavailable, err)
		}
		argv = []string{python, program, "--endpoint", url, "--episodes", strconv.Itoa(episodes), "--script", b.script, "--latency", fmt.Sprint(b.o.LoopLatency.Seconds()), "--model", strings.TrimPrefix(loop, "mini-swe-agent, ")}
		if memory {
			argv = append(argv, "--memory", "--hold-turn", strconv.Itoa(b.holdTurn()))
		}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "MSWEA_SILENT_STARTUP=1", "MSWEA_GLOBAL_CONFIG_DIR="+dir, "MSWEA_COST_TRACKING=ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP=True")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil {
		said := errs.String()
		return got, milepost.E("bench: loop", milepost.KindInternal, "%s with %d episodes: %v\n%s", loop, episodes, err, said[max(0, len(said)-2000):])
	}
	return got, nil
}

// holdTurn is the turn at which memory is read: late, when histories are long.
func (b *loopBench) holdTurn() int { return b.o.LoopTurns - 2 }

// stub starts the endpoint and returns its address.
func (b *loopBench) stub(ctx context.Context, episodes int, memory bool) (url string, stop func(), err error) {
	const op = "bench: start stub"
	self, err := os.Executable()
	if err != nil {
		return "", nil, milepost.Wrap(op, milepost.KindInternal, err)
	}
	argv := []string{"bench", "stub", "--script", b.script, "--latency", b.o.LoopLatency.String()}
	if memory {
		argv = append(argv, "--hold-turn", strconv.Itoa(b.holdTurn()), "--hold-count", strconv.Itoa(episodes))
	}
	cmd := exec.CommandContext(ctx, self, argv...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() } // how it ended is of no interest
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return strings.TrimSpace(line), stop, nil
}

// printLoops writes the table; docs/bench.md explains the columns.
func printLoops(out io.Writer, o benchOptions, rows []loopRow) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nThe agent loop, %d turns an episode, all episodes at once, a turn of the endpoint takes %s\n\n", o.LoopTurns, o.LoopLatency.Round(time.Millisecond))
	table := [][]string{{"", "at once", "CPU/turn", "turns/s", "episodes/s", "memory/episode", "collected"}}
	for _, r := range rows {
		table = append(table, []string{r.Loop, strconv.Itoa(r.Episodes), fmt.Sprintf("%.2f ms", r.cpuPerTurn()), fmt.Sprintf("%.0f", float64(r.Costs.Turns)/r.Costs.Seconds),
			fmt.Sprintf("%.1f", float64(r.Episodes)/r.Costs.Seconds), fmt.Sprintf("%.0f kB", r.perEpisode(r.Memory.Held)), fmt.Sprintf("%.0f kB", r.perEpisode(r.Memory.Settled))})
	}
	return printTable(out, table)
}
