package configs

import (
	"net"
	"slices"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/env/apptainer"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/testrun"
	"github.com/milepost-rl/milepost/internal/launch"
	"github.com/milepost-rl/milepost/internal/modeldir"
	"github.com/milepost-rl/milepost/internal/plan"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/telemetry"
	"github.com/milepost-rl/milepost/orchestrator/tracker"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/rollout/remote"
	"github.com/milepost-rl/milepost/rollout/servers"
	"github.com/milepost-rl/milepost/shadow"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// Run is everything that decides a run.
type Run struct {
	// Extends names the configuration whose fields hold where this one sets none: a shipped one, or a file, relative to
	// this one. What a run saves is whole and extends nothing.
	Extends string `yaml:"extends"`

	Run      Identity                   `yaml:"run"`      // what the run is called and where it lies
	Tasks    TaskSets                   `yaml:"tasks"`    // task sets of the splits; quickstart fills them in with the sets it makes
	Model    string                     `yaml:"model"`    // directory of the model that the run starts from; quickstart fills it in with the one it makes
	Yarn     modeldir.Yarn              `yaml:"yarn"`     // a longer context than the model was trained with, for sampler and trainer alike
	Server   vllm.ServerConfig          `yaml:"server"`   // the vLLM server that samples, started and supervised by the run or one's own
	Serve    servers.Config             `yaml:"serve"`    // servers that join the run from other machines (milepost worker serve), and how both keep in touch
	Policy   Policy                     `yaml:"policy"`   // how the agent loop speaks to the servers
	Rollout  rollout.Config             `yaml:"rollout"`  // the agent loop: scaffold and limits
	Workers  remote.Config              `yaml:"workers"`  // where the episodes of training and evaluation live: in the run's process, or at `milepost worker rollout` processes
	Sandbox  Sandbox                    `yaml:"sandbox"`  // where agents and tests run: bubblewrap on this machine, or containers
	Tests    testrun.Config             `yaml:"tests"`    // how a task's tests are run
	Probes   Probes                     `yaml:"probes"`   // shadow verification: the tests run beside the agent after every change
	Credit   credit.Config              `yaml:"credit"`   // advantages: an outcome estimator and milestone credit (SWE-MILE, arXiv 2609.32631)
	Trainer  Trainer                    `yaml:"trainer"`  // the PyTorch process
	Update   trainerbridge.UpdateConfig `yaml:"update"`   // one update of the policy
	Weights  weights.Config             `yaml:"weights"`  // how new weights reach the servers
	Schedule orchestrator.Config        `yaml:"schedule"` // how much is sampled, when it is evaluated, when the run ends
	RFT      RFT                        `yaml:"rft"`      // the cold start: demonstrations filtered by execution, then supervised fine-tuning
	Eval     evaluate.Config            `yaml:"eval"`     // `milepost eval`: prices, and when it gives up
	Trackers tracker.Config             `yaml:"trackers"` // experiment trackers besides TensorBoard, whose event files are always in the run folder
	Metrics  telemetry.Config           `yaml:"metrics"`  // the endpoint that Prometheus reads
	Launch   launch.Config              `yaml:"launch"`   // `milepost launch`: how many of each part on which machines; `milepost plan` reads it, too
	Micro    Micro                      `yaml:"micro"`    // the micro task sets that quickstart makes
}

// Identity names a run.
type Identity struct {
	Name string `yaml:"name"` // shown in the report
	Dir  string `yaml:"dir"`  // the run folder (a pipeline keeps its artifacts beside the run in it)
	Seed int64  `yaml:"seed"` // of everything that draws
}

// TaskSets are the task folders of the splits, as `milepost tasks make` and `tasks import` write them.
type TaskSets struct {
	Train      string `yaml:"train"`      // folder of the tasks that train; train needs it
	Validation string `yaml:"validation"` // folder of the tasks that choose the best weights; "" = no validation
	Heldout    string `yaml:"heldout"`    // folder of the tasks of the evaluations before and after; "" = none

	// Certificates says how the tasks' certificates (milepost tasks validate; makers write them too) are taken: require (a
	// task without a valid one is an error), use (they count where there are valid ones) or ignore. A task whose certificate
	// names a problem is left out; tests that it found flaky count neither for potentials nor for verdicts.
	Certificates benchmarks.Trust `yaml:"certificates"`
}

// Policy is how the agent loop samples.
type Policy struct {
	Pool  policy.PoolConfig  `yaml:"pool"`  // sharing, retries and health of endpoints
	Token policy.TokenConfig `yaml:"token"` // the token-exact conversation
	Chat  policy.ChatConfig  `yaml:"chat"`  // an OpenAI-compatible chat endpoint, which eval measures where base_url is set (or --chat given)
}

// Probes is shadow probing: the messenger, the prober, and workers inside the orchestrator's own process.
type Probes struct {
	Server  shadow.ServerConfig  `yaml:"server"`  // the embedded NATS server
	Connect shadow.ConnectConfig `yaml:"connect"` // an external NATS cluster instead, where url is set
	Prober  shadow.ProberConfig  `yaml:"prober"`  // the orchestrator's side: what is published and collected
	Worker  shadow.WorkerConfig  `yaml:"worker"`  // the workers' side; `milepost worker shadow` reads it too
	Local   bool                 `yaml:"local"`   // run a worker in this process; false = only workers that attach
}

// Trainer is the trainer process.
type Trainer struct {
	Address   string `yaml:"address"`   // host:port of a trainer that runs already; "" = start one
	Reference string `yaml:"reference"` // model directory of the KL reference; "" = none
	DType     string `yaml:"dtype"`     // float32 or bfloat16
	Threads   int    `yaml:"threads"`   // CPU threads of each rank; 0 = all, or with several ranks an equal part
	Ranks     int    `yaml:"ranks"`     // processes that share the model (FSDP2), started by torchrun on this machine; each takes a GPU where there are any
	Recompute bool   `yaml:"recompute"` // activation checkpointing: less memory for about a third more arithmetic

	// Kernels are fused kernels of the model: "" for none, or liger (Triton programs for norms and feed-forward parts, on GPUs
	// alone), which the trainer's environment must have got besides: pip install liger-kernel==0.8.5.
	Kernels string `yaml:"kernels"`

	// ContextParallel is the number of ranks that share one sequence, for episodes whose activations do not fit on one GPU;
	// 0 and 1: each has whole sequences. It divides ranks and the model's attention heads.
	ContextParallel int `yaml:"context_parallel"`

	// RoutingReplay trains a mixture of experts on the experts that the sampler chose for each token (R3, arXiv 2510.11370).
	// The server is asked for them (--enable-return-routed-experts; one's own server needs the flag), training episodes
	// grow by layers x experts-a-token bytes a token, and a model without experts is refused.
	RoutingReplay bool `yaml:"routing_replay"`

	// FreshValueHead gives a checkpoint without a value head a new one instead of refusing it. Whether there is a value
	// head is credit.estimator's to say (ppo_gae has one).
	FreshValueHead bool `yaml:"fresh_value_head"`

	// Lora trains an adapter (LoRA, by peft) instead of the whole model. weights.method says what servers get: the adapter
	// (lora), or a whole model with it merged (disk, transfer). A reference that is the model itself takes no memory.
	Lora trainerbridge.LoraConfig `yaml:"lora"`
}

// RFT is the cold start: demonstrations filtered by execution, then supervised fine-tuning (Nebius, arXiv 2508.03501).
type RFT struct {
	Expert      expert.Config             `yaml:"expert"`      // the scripted, imperfect expert that demonstrates
	Attempts    int                       `yaml:"attempts"`    // demonstrations tried for each training task
	Accept      orchestrator.Acceptance   `yaml:"accept"`      // which demonstrations train: resolved (every test passes) or improved (more is fixed than broken at the end)
	Mask        orchestrator.Mask         `yaml:"mask"`        // turns of a demonstration that stay as context and are not trained: none, or invalid (no call, bad arguments, a call against the rules)
	Minimum     int                       `yaml:"minimum"`     // fewer accepted demonstrations are an error
	Concurrency int                       `yaml:"concurrency"` // demonstrations under way at once
	SFT         trainerbridge.SFTConfig   `yaml:"sft"`         // the supervised steps
	Model       trainerbridge.ModelConfig `yaml:"model"`       // the tiny Llama model and its tokenizer, made from nothing where model is ""
}

// Micro are the micro task sets that a pipeline makes; Config is common to them.
type Micro struct {
	Config     micro.Config `yaml:"config"`     // what is common to the sets
	Demos      int          `yaml:"demos"`      // number of tasks of the cold start, disjoint from train; 0 = none
	Train      int          `yaml:"train"`      // number of tasks that train; 0 = none
	Validation int          `yaml:"validation"` // number of tasks that choose the best weights; 0 = none
	Heldout    int          `yaml:"heldout"`    // number of tasks of the evaluations before and after; 0 = none
}

// Default is every default: the paper's values where it has them.
func Default() Run {
	return Run{
		Run:      Identity{Name: "run", Dir: "runs/run", Seed: 1},
		Tasks:    TaskSets{Certificates: benchmarks.TrustRequire},
		Yarn:     modeldir.Yarn{Factor: 1},
		Server:   vllm.DefaultServerConfig(),
		Serve:    servers.Default(),
		Policy:   Policy{Pool: policy.DefaultPoolConfig(), Token: policy.DefaultTokenConfig(), Chat: policy.DefaultChatConfig()},
		Rollout:  rollout.Default(),
		Workers:  remote.Default(),
		Sandbox:  Sandbox{Driver: SandboxLocal, Docker: docker.Default(), Apptainer: apptainer.Default()},
		Tests:    testrun.Default(),
		Probes:   Probes{Server: shadow.DefaultServer(), Connect: shadow.DefaultConnect(), Prober: shadow.DefaultProber(), Worker: shadow.DefaultWorker(), Local: true},
		Credit:   credit.Default(),
		Trainer:  Trainer{DType: "float32", Ranks: 1, Lora: trainerbridge.DefaultLoraConfig()},
		Update:   trainerbridge.DefaultUpdateConfig(),
		Weights:  weights.DefaultConfig(),
		Schedule: orchestrator.DefaultConfig(),
		RFT: RFT{Expert: expert.DefaultConfig(), Attempts: 1, Accept: orchestrator.AcceptResolved, Mask: orchestrator.MaskNone, Minimum: 1, Concurrency: 8,
			SFT: trainerbridge.DefaultSFTConfig(), Model: trainerbridge.DefaultModelConfig()},
		Eval:     evaluate.DefaultConfig(),
		Trackers: tracker.Default(),
		Launch:   launch.Default(),
		Micro:    Micro{Config: micro.DefaultConfig(), Demos: 1000, Train: 400, Validation: 50, Heldout: 100},
	}
}

// Validate checks every part and what parts must agree on; the error names the section and field. Fields that a command
// fills in later (directories, ports, the run's id) are checked where they are used.
func (c Run) Validate() error {
	const op = "configs: validate"
	if c.Run.Dir == "" {
		return milepost.E(op, milepost.KindInvalid, "run.dir is empty; it must name the run folder")
	}
	prober, server, disk := c.Probes.Prober, c.Probes.Server, c.Weights
	prober.Run, prober.Epoch = "check", 1
	server.Dir = c.Run.Dir
	disk.Canary.Vocab = max(disk.Canary.Vocab, 1<<10)
	for _, part := range []struct {
		section string
		check   func() error
	}{
		{"server", c.Server.Validate}, {"serve", c.Serve.Validate}, {"policy.pool", c.Policy.Pool.Validate}, {"policy.token", c.Policy.Token.Validate}, {"policy.chat", c.Policy.validateChat},
		{"rollout", c.Rollout.Validate}, {"workers", c.Workers.Validate}, {"rollout.sandbox", c.Rollout.Sandbox.Validate}, {"sandbox", c.Sandbox.validate}, {"tests", c.Tests.Validate}, {"probes.prober", prober.Validate},
		{"probes.server", server.Validate}, {"probes.worker", c.Probes.Worker.Validate}, {"credit", c.Credit.Validate},
		{"update", c.Update.Validate}, {"weights", disk.Validate}, {"schedule", c.Schedule.Validate},
		{"probes.connect", c.Probes.validateConnect}, {"rft", c.RFT.validate}, {"eval", c.Eval.Validate}, {"micro", c.Micro.validate}, {"tasks", c.Tasks.validate}, {"trainer", c.Trainer.validate},
		{"yarn", c.Yarn.Validate}, {"launch", func() error { return validateLaunch(c.Launch) }}, {"trackers", c.Trackers.Validate}, {"metrics", c.Metrics.Validate},
	} {
		if err := part.check(); err != nil {
			return milepost.E(op, milepost.KindInvalid, "%s: %w", part.section, err)
		}
	}
	return c.agree()
}

// agree checks what one section says of another.
func (c Run) agree() error {
	const op = "configs: validate"
	if c.Weights.Method == weights.MethodTransfer {
		if err := c.Weights.Transfer.Reach(c.Server.URLs); err != nil {
			return milepost.E(op, milepost.KindInvalid, "weights.transfer: %w", err)
		}
	}
	switch {
	case c.Update.Temperature != c.Rollout.Temperature:
		return milepost.E(op, milepost.KindInvalid, "update.temperature is %g and rollout.temperature %g; the trainer must divide by what was sampled with", c.Update.Temperature, c.Rollout.Temperature)
	case c.Rollout.TopP != 1 && c.Schedule.MaxUpdates > 0:
		return milepost.E(op, milepost.KindInvalid, "rollout.top_p is %g; training needs 1, since anything else biases the importance ratio", c.Rollout.TopP)
	case c.Weights.Canary.DType != c.Server.DType:
		return milepost.E(op, milepost.KindInvalid, "weights.canary.dtype is %s and server.dtype %s; they must be equal", c.Weights.Canary.DType, c.Server.DType)
	case c.Schedule.Mode == orchestrator.ModeAsync && c.Weights.InFlight == weights.InFlightRefuse:
		return milepost.E(op, milepost.KindInvalid, "weights.in_flight is refuse and schedule.mode async, in which requests are always under way; allowed: recompute")
	case c.Yarn.On() && c.Server.MaxModelLen > c.Yarn.Context():
		return milepost.E(op, milepost.KindInvalid, "server.max_model_len is %d; yarn stretches %d tokens by %g, which allows %d", c.Server.MaxModelLen, c.Yarn.Original, c.Yarn.Factor, c.Yarn.Context())
	case c.Trainer.RoutingReplay && !c.Server.PrefixCache && len(c.Server.URLs) == 0:
		return milepost.E(op, milepost.KindInvalid, "trainer.routing_replay is true and server.prefix_cache false, without which vLLM returns no routes; allowed: true")
	case c.Update.Loss.KL != "none" && c.Trainer.Reference == "":
		return milepost.E(op, milepost.KindInvalid, "update.loss.kl is %s, which needs trainer.reference", c.Update.Loss.KL)
	case c.Trainer.FreshValueHead && !credit.NeedsValues(c.Credit.Estimator):
		return milepost.E(op, milepost.KindInvalid, "trainer.fresh_value_head is true and credit.estimator %s, which has no value head; allowed: false, or ppo_gae", c.Credit.Estimator)
	case c.Tests.Resident && !c.Sandbox.sharesFolders():
		return milepost.E(op, milepost.KindInvalid, "tests.resident is true and an engine of sandbox.docker may be on another machine; resident tests need engines on unix:// sockets, or set tests.resident: false")
	case c.Workers.Mode != remote.ModeLocal && c.Probes.Prober.Mode == shadow.ModeSynchronous:
		return milepost.E(op, milepost.KindInvalid, "workers.mode is %s and probes.prober.mode synchronous, in which agents wait for their probes; allowed with it: workers.mode local", c.Workers.Mode)
	case c.Workers.Mode != remote.ModeLocal && !c.Probes.Server.Listen && c.Probes.Connect.URL == "":
		return milepost.E(op, milepost.KindInvalid, "workers.mode is %s, and no worker can reach the messenger; set probes.server.listen: true, or probes.connect.url", c.Workers.Mode)
	case c.Probes.Prober.Streams != c.Probes.Worker.Streams:
		return milepost.E(op, milepost.KindInvalid, "probes.prober.streams and probes.worker.streams differ; they must be equal")
	}
	return c.checkLora()
}

func (t TaskSets) validate() error {
	if !slices.Contains(benchmarks.Trusts, t.Certificates) {
		return milepost.E("configs: tasks", milepost.KindInvalid, "certificates is %q; allowed: require, use, ignore", t.Certificates)
	}
	return nil
}

func (t Trainer) validate() error {
	if t.DType != "float32" && t.DType != "bfloat16" {
		return milepost.E("configs: trainer", milepost.KindInvalid, "dtype is %q; allowed: float32, bfloat16", t.DType)
	}
	if host, port, err := net.SplitHostPort(t.Address); t.Address != "" && !strings.HasPrefix(t.Address, "unix:") {
		if n, bad := strconv.Atoi(port); err != nil || host == "" || bad != nil || n < 1 || n > 65535 {
			return milepost.E("configs: trainer", milepost.KindInvalid, "address is %q; allowed: HOST:PORT, unix:PATH, or \"\" for a trainer of the run's own", t.Address)
		}
	}
	if t.Threads < 0 {
		return milepost.E("configs: trainer", milepost.KindInvalid, "threads is %d; allowed: 0 (all) or more", t.Threads)
	}
	if t.Ranks < 1 || t.Ranks > 1 && t.Address != "" {
		return milepost.E("configs: trainer", milepost.KindInvalid, "ranks is %d; allowed: 1 or more, and 1 where address names a trainer that runs already (its torchrun has the number)", t.Ranks)
	}
	switch {
	case t.Kernels != "" && t.Kernels != "liger":
		return milepost.E("configs: trainer", milepost.KindInvalid, "kernels is %q; allowed: \"\", liger", t.Kernels)
	case t.ContextParallel < 0 || t.ContextParallel > 1 && t.Address == "" && t.Ranks%t.ContextParallel != 0:
		return milepost.E("configs: trainer", milepost.KindInvalid, "context_parallel is %d; allowed: 0 (none), or a divisor of ranks, %d", t.ContextParallel, t.Ranks)
	case t.ContextParallel > 1 && t.RoutingReplay:
		return milepost.E("configs: trainer", milepost.KindInvalid, "context_parallel is %d and routing_replay true; allowed: one of them", t.ContextParallel)
	}
	return t.Lora.Validate()
}

// validateLaunch checks also what milepost plan alone knows.
func validateLaunch(l launch.Config) error {
	const op = "configs: launch"
	switch {
	case l.GPU != "" && !slices.Contains(plan.GPUs(), l.GPU):
		return milepost.E(op, milepost.KindInvalid, "gpu is %q; allowed: \"\" (none), %s", l.GPU, strings.Join(plan.GPUs(), ", "))
	case l.Shape != "" && !slices.Contains(modeldir.Presets(), strings.ToLower(l.Shape)):
		return milepost.E(op, milepost.KindInvalid, "shape is %q; allowed: \"\" (none), %s", l.Shape, strings.Join(modeldir.Presets(), ", "))
	}
	return l.Validate()
}

// validateChat checks the chat endpoint; without an address it is not used, or --chat names it.
func (p Policy) validateChat() error {
	chat := p.Chat
	if chat.BaseURL == "" && chat.Model == "" {
		chat.BaseURL, chat.Model = "http://127.0.0.1/v1", "model"
	}
	return chat.Validate()
}

// validateConnect checks the external messenger where one is named.
func (p Probes) validateConnect() error {
	if p.Connect.URL == "" {
		return nil
	}
	return p.Connect.Validate()
}

func (r RFT) validate() error {
	const op = "configs: rft"
	switch {
	case r.Attempts < 1 || r.Minimum < 1 || r.Concurrency < 1:
		return milepost.E(op, milepost.KindInvalid, "attempts, minimum and concurrency must be 1 or more (got %d, %d, %d)", r.Attempts, r.Minimum, r.Concurrency)
	case r.Accept != orchestrator.AcceptResolved && r.Accept != orchestrator.AcceptImproved:
		return milepost.E(op, milepost.KindInvalid, "accept is %q; allowed: resolved, improved", r.Accept)
	case r.Mask != orchestrator.MaskNone && r.Mask != orchestrator.MaskInvalid:
		return milepost.E(op, milepost.KindInvalid, "mask is %q; allowed: none, invalid", r.Mask)
	}
	if _, err := expert.New(r.Expert); err != nil {
		return err
	}
	if err := r.SFT.Validate(); err != nil {
		return err
	}
	return r.Model.Validate()
}

func (m Micro) validate() error {
	for _, n := range []int{m.Demos, m.Train, m.Validation, m.Heldout} {
		if n < 0 {
			return milepost.E("configs: micro", milepost.KindInvalid, "demos, train, validation and heldout must not be negative")
		}
	}
	return m.Config.Validate()
}
