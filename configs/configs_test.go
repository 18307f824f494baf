package configs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/internal/confdoc"
)

func marshal(t *testing.T, c configs.Run) string {
	t.Helper()
	b, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// allShipped are the shipped files, as messages list them.
const allShipped = "e2e_real, micro_generate, nebius_rft, nebius_stage1, nebius_stage2, quickstart, quickstart_async, reference, " +
	"swe_mile_bug_repair_27b, swe_mile_bug_repair_35b_a3b, swe_mile_bug_repair_9b, swe_mile_bug_repair_9b_async, " +
	"swe_mile_repo_generation_27b, swe_mile_repo_generation_35b_a3b, swe_mile_repo_generation_9b"

// TestShipped: every shipped file loads, and what a run saves of it loads as the same.
func TestShipped(t *testing.T) {
	names := configs.Names()
	if want := strings.Split(allShipped, ", "); !reflect.DeepEqual(names, want) {
		t.Errorf("shipped are %v, want %v", names, want)
	}
	for _, name := range names {
		c, err := configs.Load(name, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again, err := configs.Load(write(t, marshal(t, c)), nil)
		if err != nil {
			t.Errorf("%s, saved: %v", name, err)
			continue
		}
		if got, want := marshal(t, again), marshal(t, c); got != want {
			t.Errorf("%s changes when it is saved and read:\n%s\nwas\n%s", name, got, want)
		}
	}
}

// TestReference: reference.yaml is what the generator writes, so it is complete and every field has its comment.
func TestReference(t *testing.T) {
	want, err := configs.Reference(confdoc.NewSource("github.com/milepost-rl/milepost", ".."))
	if err != nil {
		t.Fatal(err)
	}
	got, err := configs.Source("reference")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("configs/reference.yaml is stale (run: make generate)")
	}
	for i, line := range strings.Split(string(got), "\n") {
		text, _, _ := strings.Cut(line, " #")
		if len([]rune(line)) > 120 && !strings.Contains(text, "_prompt:") {
			t.Errorf("reference.yaml:%d has more than 120 columns", i+1)
		}
	}
	if !strings.Contains(string(got), strings.Join(credit.Estimators()[:len(credit.Estimators())-1], ", ")+" or ") {
		t.Error("the comment of credit.estimator does not name every estimator")
	}
}

// TestReferenceIsDefault: setting every field to what the reference says changes nothing.
func TestReferenceIsDefault(t *testing.T) {
	c, err := configs.Load("reference", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := marshal(t, c), marshal(t, configs.Default()); got != want {
		t.Errorf("reference.yaml gives\n%s\nthe defaults are\n%s", got, want)
	}
}

// TestQuickstartSamplesPlainly: without a sampling section nothing is replaced, oversampled or retired.
func TestQuickstartSamplesPlainly(t *testing.T) {
	for _, name := range []string{"quickstart", "e2e_real", "reference"} {
		c, err := configs.Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := c.Schedule.Sampling; s.Dynamic() || s != credit.PlainSampling() {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestFaults: what is wrong with a file is said with its line, the field and what is allowed. FILE stands for its path.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown field":   {"run:\n  sed: 3\n", `configs: parse: FILE:2: run.sed: unknown field; allowed: name, dir, seed`},
		"unknown section": {"# x\n\nnope: 1\n", `FILE:3: nope: unknown field; allowed: extends, run, tasks, model, yarn, server, serve, policy,`},
		"deep field":      {"rft:\n  sft:\n    optimizer:\n      lrr: 1\n", `FILE:4: rft.sft.optimizer.lrr: unknown field; allowed: lr, beta1, beta2, eps, weight_decay, clip_norm`},
		"internal field":  {"probes:\n  prober:\n    epoch: 3\n", `FILE:3: probes.prober.epoch: unknown field; allowed: mode, streams,`},

		"text for number":   {"run:\n  seed: lots\n", `FILE:2: run.seed is "lots"; allowed: a whole number`},
		"fraction":          {"run:\n  seed: 1.5\n", `FILE:2: run.seed is 1.5; allowed: a whole number`},
		"too large":         {"run:\n  seed: 99999999999999999999\n", `FILE:2: run.seed is "99999999999999999999"; allowed: a whole number`},
		"too large for 32":  {"probes:\n  server:\n    max_payload: 4294967296\n", `FILE:3: probes.server.max_payload is 4294967296; allowed: a whole number`},
		"text for float":    {"credit:\n  eps: small\n", `FILE:2: credit.eps is "small"; allowed: a number`},
		"number for time":   {"rollout:\n  wall: 5\n", `FILE:2: rollout.wall is 5; allowed: a duration such as 90s, 2m or 1h30m`},
		"text for time":     {"rollout:\n  wall: soon\n", `FILE:2: rollout.wall is "soon"; allowed: a duration such as 90s, 2m or 1h30m`},
		"quoted number":     {"credit:\n  eps: \"1e-6\"\n", `FILE:2: credit.eps is "1e-6"; allowed: a number`},
		"yes":               {"server:\n  eager: yes\n", `FILE:2: server.eager is "yes"; allowed: true or false`},
		"text for list":     {"rollout:\n  tools:\n    names: search\n", `FILE:3: rollout.tools.names is "search"; allowed: a list such as [a, b]`},
		"list in list":      {"server:\n  args: [[a]]\n", `FILE:2: server.args[0] is a list; allowed: text`},
		"number for map":    {"server:\n  env: 5\n", `FILE:2: server.env is 5; allowed: a mapping`},
		"list in map":       {"server:\n  env:\n    A: [b]\n", `FILE:3: server.env.A is a list; allowed: text`},
		"number for struct": {"run: 5\n", `FILE:1: run is 5; allowed: a mapping of name, dir, seed`},
		"mapping for text":  {"model:\n  path: x\n", `FILE:2: model is a mapping; allowed: text`},
		"nothing":           {"run:\n  seed:\n", `FILE:2: run.seed is empty; allowed: a whole number`},

		"one field out of range":  {"schedule:\n  groups_per_update: 1\n  group_size: 0\n", `configs: validate: FILE:3: schedule.group_size: schedule: orchestrator: schedule: schedule.group_size is 0; allowed: 1 or more`},
		"closed set":              {"run:\nserver:\n  dtype: float8\n", `FILE:3: server.dtype: server: vllm: server configuration: dtype "float8" is not one of: float32, bfloat16, float16`},
		"not a number":            {"credit:\n  eps: .nan\n", `FILE:2: credit.eps: credit: credit: configure: field eps is NaN; allowed: a finite number from 0`},
		"expert":                  {"rft:\n  expert:\n    right: 2\n", `FILE:3: rft.expert.right: rft: expert: configuration: right is 2; allowed are 0 to 1`},
		"one field of another's":  {"micro:\n  config:\n    files: 1\n", `FILE:3: micro.config.files: micro: micro: configuration: faults is 3; allowed are 1 to 2`},
		"two sections disagree":   {"update:\n  temperature: .5\nrollout:\n  temperature: .7\n", `FILE:2: update.temperature, FILE:4: rollout.temperature: update.temperature is 0.5 and rollout.temperature 0.7;`},
		"training with top_p":     {"rollout:\n  top_p: .9\n", `FILE:2: rollout.top_p: rollout.top_p is 0.9; training needs 1`},
		"canary of another dtype": {"server:\n  dtype: bfloat16\n", `FILE:2: server.dtype: weights.canary.dtype is float32 and server.dtype bfloat16; they must be equal`},
		"no reference for the KL": {"update:\n  loss:\n    kl: k3\n", `FILE:3: update.loss.kl: update.loss.kl is k3, which needs trainer.reference`},
		"async without requests":  {"schedule:\n  mode: async\nweights:\n  in_flight: refuse\n", `FILE:4: weights.in_flight: weights.in_flight is refuse and schedule.mode async, in which requests are always under way; allowed: recompute`},
		"a head for no values":    {"trainer:\n  fresh_value_head: true\n", `FILE:2: trainer.fresh_value_head: trainer.fresh_value_head is true and credit.estimator grpo, which has no value head; allowed: false, or ppo_gae`},
		"value head":              {"update:\n  value:\n    coef: 0\n", `FILE:3: update.value.coef: update: trainerbridge: update configuration: value.coef is 0; allowed: above 0`},
		"workers unreachable":     {"workers:\n  mode: remote\n", `FILE:2: workers.mode: workers.mode is remote, and no worker can reach the messenger; set probes.server.listen: true, or probes.connect.url`},
		"agents wait for probes":  {"workers:\n  mode: both\nprobes:\n  prober:\n    mode: synchronous\n", `FILE:2: workers.mode, FILE:5: probes.prober.mode: workers.mode is both and probes.prober.mode synchronous, in which agents wait for their probes; allowed with it: workers.mode local`},
		"workers nowhere":         {"workers:\n  mode: there\n", `FILE:2: workers.mode: workers: remote: config: mode "there" is not one of local, remote, both`},
		"streams differ":          {"probes:\n  worker:\n    streams:\n      prefix: mine\n", `FILE:4: probes.worker.streams.prefix: probes.prober.streams and probes.worker.streams differ; they must be equal`},
		"no run folder":           {"run:\n  dir: \"\"\n", `FILE:2: run.dir: run.dir is empty; it must name the run folder`},
		"a messenger of no kind":  {"probes:\n  connect:\n    url: http://x\n", `FILE:3: probes.connect.url: probes.connect: shadow: connect config: url "http://x" does not start with nats:// or tls://`},
		"kernels":                 {"trainer:\n  kernels: flash\n", `FILE:2: trainer.kernels: trainer: configs: trainer: kernels is "flash"; allowed: "", liger`},
		"context parallelism":     {"trainer:\n  ranks: 4\n  context_parallel: 3\n", `FILE:2: trainer.ranks, FILE:3: trainer.context_parallel: trainer: configs: trainer: context_parallel is 3; allowed: 0 (none), or a divisor of ranks, 4`},
		"transfer from afar":      {"server:\n  urls: [\"http://10.0.0.9:8000\"]\nweights:\n  method: transfer\n", `host is 127.0.0.1, where the server http://10.0.0.9:8000 does not find the trainer`},
		"trainer":                 {"trainer:\n  dtype: float8\n", `FILE:2: trainer.dtype: trainer: configs: trainer: dtype is "float8"; allowed: float32, bfloat16`},
		"a GPU of no kind":        {"launch:\n  gpu: h100\n", `FILE:2: launch.gpu: launch: configs: launch: gpu is "h100"; allowed: "" (none), a100-40g, a100-80g, h100-80g, `},
		"a shape of no model":     {"launch:\n  shape: /models/m\n", `FILE:2: launch.shape: launch: configs: launch: shape is "/models/m"; allowed: "" (none), qwen2.5-72b, qwen3-30b-a3b, `},
		"threads":                 {"trainer:\n  threads: -1\n", `threads is -1; allowed: 0 (all) or more`},
		"acceptance":              {"rft:\n  accept: all\n", `FILE:2: rft.accept: rft: configs: rft: accept is "all"; allowed: resolved, improved`},
		"attempts":                {"rft:\n  attempts: 0\n", `attempts, minimum and concurrency must be 1 or more (got 0, 1, 8)`},
		"negative sets":           {"micro:\n  demos: -1\n", `FILE:2: micro.demos: micro: configs: micro: demos, train, validation and heldout must not be negative`},

		"duplicate key":  {"run:\n  seed: 1\n  seed: 2\n", `FILE:3: mapping key "seed" already defined at [2:3]`},
		"tabs":           {"run:\n\tseed: 1\n", "FILE:2: found character '\t' that cannot start any token"},
		"open list":      {"server:\n  args: [a\n", `FILE:2: sequence end token ']' not found`},
		"empty":          {"", `FILE: no field is set; the shipped configurations show how: ` + allShipped},
		"comments only":  {"# run:\n", `FILE: no field is set;`},
		"null":           {"null\n", `FILE:1: the configuration is empty; allowed: a mapping of extends, run, tasks,`},
		"a list":         {"- a\n", `FILE:1: the configuration is a list; allowed: a mapping of extends, run, tasks,`},
		"long text":      {strings.Repeat("x", 1000) + "\n", `FILE:1: the configuration is "` + strings.Repeat("x", 100) + `…"; allowed: a mapping of extends, run, tasks,`},
		"plain text":     {"hello\n", `FILE:1: the configuration is "hello"; allowed: a mapping of extends, run, tasks,`},
		"two documents":  {"run:\n  seed: 1\n---\nrun:\n  seed: 2\n", `FILE:4: a second YAML document begins; allowed: one`},
		"anchors":        {"server: &a\n  port: 1\n", `FILE:1: server: anchors, aliases and tags are not part of a configuration`},
		"tags":           {"run:\n  seed: !!int 3\n", `FILE:2: run.seed: anchors, aliases and tags are not part of a configuration`},
		"not UTF-8":      {"run:\n  name: \xff\xfe\n", `FILE: the text is not valid UTF-8`},
		"cut in a quote": {"run:\n  name: \"abc\n", `FILE:2: could not find end character of double-quoted text`},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, c.text)
			_, err := configs.Load(file, nil)
			if err == nil {
				t.Fatalf("%q loads", c.text)
			}
			if got := strings.ReplaceAll(err.Error(), file, "FILE"); !strings.Contains(got, c.want) || milepost.KindOf(err) != milepost.KindInvalid {
				t.Errorf("%s error\n%s\nwant\n%s", milepost.KindOf(err), got, c.want)
			}
		})
	}
}

func TestMissing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	_, err := configs.Load(missing, nil)
	want := missing + " is neither a file nor one of the shipped configurations: " + allShipped
	if milepost.KindOf(err) != milepost.KindNotFound || !strings.Contains(err.Error(), want) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := configs.Load(t.TempDir(), nil); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("a folder for a file: %v", err)
	}
}

// TestShippedPlace: a fault of a shipped file is placed by its file name.
func TestShippedPlace(t *testing.T) {
	_, err := configs.Load("quickstart", []string{"rollout.temperature=.5"})
	if want := "--set rollout.temperature=.5: rollout.temperature: update.temperature is 1"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	if c, err := configs.Load("reference", []string{"launch.gpu=h100-80g", "launch.shape=Qwen3-8B"}); err != nil {
		t.Errorf("%+v: %v", c.Launch, err)
	}
	// without sandbox.docker.image or trainer.ranks of this recipe, other errors come before this one
	_, err = configs.Load("swe_mile_bug_repair_9b", []string{"launch.replicas=0"})
	if want := "configs: validate: --set launch.replicas=0: launch.replicas: launch: launch: configuration: replicas is 0"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	_, err = configs.Load("reference", []string{"weights.canary.dtype=bfloat16"})
	if want := "reference.yaml:"; err != nil && strings.Contains(err.Error(), want) {
		t.Errorf("a field that is at its default is blamed: %v", err)
	}
}
