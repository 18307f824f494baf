package vllm

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// ServerConfig says which vLLM serves the policy: one that Milepost starts and supervises, or, with URLs, one's own.
type ServerConfig struct {
	// URLs are base addresses of servers that run already; nothing is started then. They need the flags that a started one
	// gets: --generation-config vllm --logprobs-mode processed_logprobs --enable-scale-out, and VLLM_SERVER_DEV_MODE=1.
	URLs    []string `yaml:"urls"`
	Command []string `yaml:"command"` // how to start vLLM, for example ["vllm", "serve"]; empty = the pinned server environment
	// Replicas is how many servers are started on this machine, each with weights and a KV cache of its own: replica i has the
	// i-th tensor_parallel GPUs or, without GPUs, an equal part of the cores. 0 = none: the run waits for servers that join it
	// (milepost worker serve).
	Replicas int `yaml:"replicas"`

	Model          string            `yaml:"model"`           // filled in by a run: the directory it serves (config.json, tokenizer, safetensors)
	Name           string            `yaml:"name"`            // name it is served under
	Host           string            `yaml:"host"`            // bind address; development routes have no key, so keep it private
	Port           int               `yaml:"port"`            // of the first replica, the others' follow; 0 = any free ones
	MaxModelLen    int               `yaml:"max_model_len"`   // longest context in tokens
	MaxSequences   int               `yaml:"max_sequences"`   // most sequences in a batch; 0 = vLLM's default
	DType          string            `yaml:"dtype"`           // float32, bfloat16 or float16
	TensorParallel int               `yaml:"tensor_parallel"` // GPUs that share one replica's weights and KV cache; 1 = no sharing
	Eager          bool              `yaml:"eager"`           // no graph capture or compilation; what a CPU needs
	KVCacheGB      int               `yaml:"kv_cache_gb"`     // CPU only: size of the KV cache; 0 = vLLM's default
	PrefixCache    bool              `yaml:"prefix_cache"`    // reuse the keys and values of common prefixes
	Transfer       string            `yaml:"-"`               // backend of the weight-transfer API, "" = none; set by weights.method
	Plugins        string            `yaml:"-"`               // directory of Milepost's vLLM plugin (milepost_vllm), set by the program
	Routes         bool              `yaml:"-"`               // return the experts of each token; set by trainer.routing_replay
	Lora           LoraServing       `yaml:"lora"`            // the adapters it takes, where weights.method is lora
	Args           []string          `yaml:"args"`            // further flags, last
	Env            map[string]string `yaml:"env"`             // further environment
}

// DefaultServerConfig is every default; Model must be set unless URLs is.
func DefaultServerConfig() ServerConfig {
	return ServerConfig{
		Replicas: 1, Name: "policy", Host: "127.0.0.1", MaxModelLen: 4096, DType: "float32", TensorParallel: 1, Eager: true, KVCacheGB: 1, PrefixCache: true,
		Lora: DefaultLoraServing(),
	}
}

// DTypes are the allowed values of ServerConfig.DType. "auto" is not among them: the canary's bound depends on it.
var DTypes = []string{"float32", "bfloat16", "float16"}

const flagTransfer = "--weight-transfer-config"

// owned are the flags that Argv sets and Args may not, with the field that does.
var owned = map[string]string{
	"--model": "model", "--served-model-name": "name", "--host": "host", "--port": "port", "--max-model-len": "max_model_len",
	"--dtype": "dtype", "--enforce-eager": "eager", "--max-num-seqs": "max_sequences", "--tensor-parallel-size": "tensor_parallel", "-tp": "tensor_parallel",
	"--logprobs-mode": "nothing: processed_logprobs is what was sampled from", "--generation-config": "nothing: the model's own sampling defaults must not leak in",
	FlagRoutes: "trainer.routing_replay", flagTransfer: "weights.method", "--enable-lora": "weights.method", "--max-lora-rank": "trainer.lora.rank",
	"--max-loras": "lora.max_loras", "--max-cpu-loras": "lora.max_cpu_loras",
}

// Validate checks every field but the existence of the model; CheckModel does that.
func (c ServerConfig) Validate() error {
	const op = "vllm: server configuration"
	for i, u := range c.URLs {
		if _, err := New(Config{URL: u}); err != nil {
			return milepost.E(op, milepost.KindInvalid, "urls[%d]: %w", i, err)
		}
	}
	if len(c.URLs) > 0 {
		return nil
	}
	switch {
	case c.Name == "":
		return milepost.E(op, milepost.KindInvalid, "name is empty")
	case net.ParseIP(c.Host) == nil && c.Host != "localhost":
		return milepost.E(op, milepost.KindInvalid, "host %q is no IP address", c.Host)
	case c.Replicas < 0 || c.Replicas > maxReplicas:
		return milepost.E(op, milepost.KindInvalid, "replicas is %d; it must be 0 to %d", c.Replicas, maxReplicas)
	case c.Port < 0 || c.Port > 65535:
		return milepost.E(op, milepost.KindInvalid, "port is %d; it must be 0 (any free one) to 65535", c.Port)
	case c.Port > 0 && c.Port+c.Replicas-1 > 65535:
		return milepost.E(op, milepost.KindInvalid, "port is %d and replicas %d; the last one's port is above 65535", c.Port, c.Replicas)
	case c.MaxModelLen < 16:
		return milepost.E(op, milepost.KindInvalid, "max_model_len is %d; it must be at least 16", c.MaxModelLen)
	case c.MaxSequences < 0 || c.KVCacheGB < 0:
		return milepost.E(op, milepost.KindInvalid, "max_sequences is %d and kv_cache_gb %d; they must be at least 0", c.MaxSequences, c.KVCacheGB)
	case c.TensorParallel < 1:
		return milepost.E(op, milepost.KindInvalid, "tensor_parallel is %d; it must be at least 1", c.TensorParallel)
	case !slices.Contains(DTypes, c.DType):
		return milepost.E(op, milepost.KindInvalid, "dtype %q is not one of: %s", c.DType, strings.Join(DTypes, ", "))
	}
	if err := c.Lora.validate(op); err != nil {
		return err
	}
	for _, a := range c.Args {
		name, _, _ := strings.Cut(a, "=")
		if field, ok := owned[name]; ok {
			return milepost.E(op, milepost.KindInvalid, "args may not set %s; it is set by %s", name, field)
		}
	}
	return nil
}

// maxReplicas bounds what one machine is asked to start.
const maxReplicas = 64

// Replica is the configuration of replica i alone; one of several gets a part of the machine that the others do not have.
//
// With the pinned environment, a CPU build, that is a share of the machine's cores. vLLM's own choice
// (VLLM_CPU_OMP_THREADS_BIND=auto) would bind the threads of every replica to the same cores; here they are not bound at
// all, since trainer and sandboxes use the same cores. With a command of one's own it is the i-th TensorParallel GPUs of
// visible, which is CUDA_VISIBLE_DEVICES as the caller has it, "" for all. Env wins.
func (c ServerConfig) Replica(i, cores int, visible string) (ServerConfig, error) {
	env := map[string]string{}
	switch {
	case c.Replicas < 2:
	case len(c.Command) == 0:
		env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
		env["OMP_NUM_THREADS"] = strconv.Itoa(max(1, cores/c.Replicas))
	case c.Env[visibleDevices] == "":
		devices, err := share(visible, c.TensorParallel, c.Replicas, i)
		if err != nil {
			return c, err
		}
		env[visibleDevices] = devices
	}
	maps.Copy(env, c.Env)
	c.Env, c.Replicas = env, 1
	if c.Port > 0 {
		c.Port += i
	}
	return c, nil
}

const visibleDevices = "CUDA_VISIBLE_DEVICES"

// share is the i-th part of n of the visible devices, each of which has per devices.
func share(visible string, per, n, i int) (string, error) {
	var all []string
	if visible == "" {
		for d := range n * per {
			all = append(all, strconv.Itoa(d))
		}
	} else {
		all = strings.Split(visible, ",")
	}
	if len(all) < n*per {
		return "", milepost.E("vllm: share devices", milepost.KindInvalid, "%s=%s are %d devices; %d replicas of tensor_parallel %d need %d", visibleDevices, visible, len(all), n, per, n*per)
	}
	return strings.Join(all[i*per:(i+1)*per], ","), nil
}

// CheckModel fails with KindNotFound where the model directory or what a server needs of it is missing.
func (c ServerConfig) CheckModel() error {
	const op = "vllm: check model"
	if c.Model == "" {
		return milepost.E(op, milepost.KindInvalid, "server.model is empty; it must name the directory of the model to serve")
	}
	info, err := os.Stat(c.Model)
	if err != nil || !info.IsDir() {
		return milepost.E(op, milepost.KindNotFound, "model directory %s does not exist", c.Model)
	}
	for _, pattern := range []string{"config.json", "tokenizer_config.json", "*.safetensors"} {
		if found, _ := filepath.Glob(filepath.Join(c.Model, pattern)); len(found) == 0 {
			return milepost.E(op, milepost.KindNotFound, "model directory %s has no %s", c.Model, pattern)
		}
	}
	if c.Routes {
		return checkExperts(op, c.Model)
	}
	return nil
}

// Argv is the command that serves the model. Environment is the directory of the pinned server environment (printed by
// trainer_bridge/python/envs/install server); it is used where Command is empty.
//
// The pinned one is started as a Python module: the package is called vllm-cpu there, and its vllm script looks for a
// package called vllm and fails.
func (c ServerConfig) Argv(environment string) []string {
	argv := slices.Clone(c.Command)
	if len(argv) == 0 {
		argv = []string{filepath.Join(environment, "bin", "python"), "-m", "vllm.entrypoints.openai.api_server"}
	}
	if argv[len(argv)-1] == "serve" {
		argv = append(argv, c.Model)
	} else {
		argv = append(argv, "--model", c.Model)
	}
	argv = append(argv,
		"--served-model-name", c.Name, "--host", c.Host, "--port", strconv.Itoa(c.Port),
		"--dtype", c.DType, "--max-model-len", strconv.Itoa(c.MaxModelLen),
		"--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", "--enable-scale-out",
		"--disable-uvicorn-access-log")
	if c.Eager {
		argv = append(argv, "--enforce-eager")
	}
	if c.MaxSequences > 0 {
		argv = append(argv, "--max-num-seqs", strconv.Itoa(c.MaxSequences))
	}
	if c.TensorParallel > 1 {
		argv = append(argv, "--tensor-parallel-size", strconv.Itoa(c.TensorParallel))
	}
	if !c.PrefixCache {
		argv = append(argv, "--no-enable-prefix-caching")
	}
	if c.Transfer != "" {
		argv = append(argv, flagTransfer, fmt.Sprintf(`{"backend":%q}`, c.Transfer))
	}
	if c.Routes {
		argv = append(argv, FlagRoutes)
	}
	argv = append(argv, c.Lora.argv()...)
	return append(argv, c.Args...)
}

// Environ is what the server needs in its environment, beyond the caller's own: development routes, no usage
// statistics, no look-ups outside of the machine. Env wins.
func (c ServerConfig) Environ() map[string]string {
	env := map[string]string{
		"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
	}
	if c.KVCacheGB > 0 {
		env["VLLM_CPU_KVCACHE_SPACE"] = strconv.Itoa(c.KVCacheGB)
	}
	if c.Lora.Rank > 0 {
		env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
	}
	maps.Copy(env, c.Env)
	if c.Plugins != "" {
		own := env["PYTHONPATH"]
		if own == "" {
			own = os.Getenv("PYTHONPATH")
		}
		env["PYTHONPATH"] = strings.TrimSuffix(c.Plugins+string(os.PathListSeparator)+own, string(os.PathListSeparator))
	}
	return env
}

// WithPort returns the configuration with a free port of the host in place of 0.
func (c ServerConfig) WithPort() (ServerConfig, error) {
	if c.Port != 0 {
		return c, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return c, milepost.E("vllm: choose port", milepost.KindUnavailable, "no free port on %s: %w", c.Host, err)
	}
	defer l.Close()
	c.Port = l.Addr().(*net.TCPAddr).Port
	return c, nil
}

// Addresses are the base addresses of the servers: URLs, or that of the one replica that Argv starts.
func (c ServerConfig) Addresses() []string {
	if len(c.URLs) > 0 {
		return c.URLs
	}
	return []string{fmt.Sprintf("http://%s", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))}
}
