package launch

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
)

//go:embed templates
var sources embed.FS

// Spec is what is launched: the parts' numbers and what of the run's configuration they need to know.
type Spec struct {
	Config
	Name        string        // of the run: names of jobs and objects come from it
	Run         string        // the run folder, absolute
	Resolved    []byte        // the resolved configuration as YAML, without secrets
	Model       string        // directory, absolute
	Files       []string      // further folders that every machine must see, absolute: task sets
	Parallel    int           // GPUs of a replica
	Ranks       int           // of the trainer on one node
	Docker      bool          // agents and tests run in containers of a Docker engine
	OwnServers  bool          // server.urls names vLLM servers that run already: none are launched
	OwnTrainer  bool          // trainer.address names a trainer that runs already
	Transfer    bool          // weights are sent by gloo, and weights.transfer.host is a loopback address: the run learns the trainer's
	Trackers    bool          // some experiment tracker is enabled
	Drain       time.Duration // how long a stopping worker or server may take
	ProgramPath string        // the milepost program for local and slurm; "" = milepost, from PATH
}

// Targets are the names that Write knows.
func Targets() []string { return []string{"local", "slurm", "kubernetes"} }

// targets are the files of each target, with the template that each is made of. part.sh is how every part is started,
// everywhere.
var targets = map[string]map[string]string{
	"local":      {"part.sh": "part.sh", "run.sh": "local.sh"},
	"slurm":      {"part.sh": "part.sh", "run.sbatch": "slurm.sbatch"},
	"kubernetes": {"nats.yaml": "nats.yaml", "servers.yaml": "servers.yaml", "trainer.yaml": "trainer.yaml", "workers.yaml": "workers.yaml", "run.yaml": "run.yaml"},
}

// Write writes what starts the run on a target into out, which must not exist or be empty, and returns the names of the
// files. It is there whole or not at all.
func Write(target, out string, s Spec) ([]string, error) {
	const op = "launch: write"
	files, ok := targets[target]
	if !ok {
		return nil, milepost.E(op, milepost.KindInvalid, "no target is called %q; allowed: %s", target, strings.Join(Targets(), ", "))
	}
	if err := s.check(target); err != nil {
		return nil, err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return nil, milepost.E(op, milepost.KindConflict, "%s is not empty; give another --out", out)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if target == "kubernetes" { // every pod has an address of its own
		s.PortOffset = 0
	}
	texts, err := s.render(files)
	if err != nil {
		return nil, err
	}
	if target != "kubernetes" { // there it is in a ConfigMap
		texts["config.yaml"] = s.Resolved
	}
	return write(out, texts)
}

// write puts files into a new folder beside out and renames it.
func write(out string, texts map[string][]byte) ([]string, error) {
	const op = "launch: write"
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".launch-*")
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	var names []string
	err = os.Chmod(tmp, 0o755)
	for name, text := range texts {
		mode := os.FileMode(0o644)
		if bytes.HasPrefix(text, []byte("#!")) {
			mode = 0o755
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(tmp, name), text, mode))
		names = append(names, name)
	}
	if err == nil { // an empty out gives way
		if err = os.Remove(out); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(tmp, out)
	}
	return names, milepost.Wrap(op, milepost.KindUnavailable, err)
}

// check refuses what a target cannot do, before anything is written.
func (s Spec) check(target string) error {
	const op = "launch: check"
	gpus := s.ServerNodes()*s.GPUsPerNode > 0
	switch {
	case !dnsLabel.MatchString(s.Name) || len(s.Name) > 40:
		return milepost.E(op, milepost.KindInvalid, "run.name is %q; it names jobs: at most 40 lower case letters, digits and dashes", s.Name)
	case gpus && s.Parallel > s.GPUsPerNode:
		return milepost.E(op, milepost.KindInvalid, "server.tensor_parallel is %d and launch.gpus_per_node %d; a replica lies on one node", s.Parallel, s.GPUsPerNode)
	case s.GPUsPerNode > 0 && s.Ranks > s.GPUsPerNode:
		return milepost.E(op, milepost.KindInvalid, "trainer.ranks is %d and launch.gpus_per_node %d; each rank has a GPU of its own", s.Ranks, s.GPUsPerNode)
	case target == "local" && s.GPUsPerNode > 0 && s.GPUs() > s.GPUsPerNode:
		return milepost.E(op, milepost.KindInvalid, "launch.replicas x server.tensor_parallel + trainer.ranks is %d; allowed on one machine: launch.gpus_per_node, %d", s.GPUs(), s.GPUsPerNode)
	case target == "local" && s.TrainerNodes > 1:
		return milepost.E(op, milepost.KindInvalid, "launch.trainer_nodes is %d; target local is one machine", s.TrainerNodes)
	case target == "slurm" && int(s.Slurm.Time.Minutes())*60 <= s.Notice():
		return milepost.E(op, milepost.KindInvalid, "launch.slurm.time is %v, and parts are stopped %d s before its end (drain_timeout of probes.worker, workers.worker and serve); allowed: more whole minutes than that", s.Slurm.Time, s.Notice())
	case target != "local" && s.Transfer && s.OwnTrainer:
		return milepost.E(op, milepost.KindInvalid, "weights.transfer.host is a loopback address, where servers on other nodes do not find the trainer of trainer.address; allowed: an address of the trainer's machine")
	case target == "kubernetes" && s.Name[0] < 'a':
		return milepost.E(op, milepost.KindInvalid, "run.name is %q; it names services of Kubernetes, which begin with a letter", s.Name)
	case target == "kubernetes" && s.Trackers:
		return milepost.E(op, milepost.KindInvalid, "trackers are enabled, and neither their packages nor their keys are in a pod of target kubernetes; TensorBoard's files are in the run folder, Prometheus reads port metrics")
	}
	if target != "kubernetes" {
		return nil
	}
	for _, path := range append([]string{s.Run, s.Model}, s.Files...) {
		if path != "" && path != s.Kubernetes.Mount && !strings.HasPrefix(path, s.Kubernetes.Mount+"/") {
			return milepost.E(op, milepost.KindInvalid, "%s is not below launch.kubernetes.mount, %s, where the pods have the shared volume", path, s.Kubernetes.Mount)
		}
	}
	return nil
}

// GPUs is the number of GPUs that are launched upon, with one node of the trainer.
func (s Spec) GPUs() int {
	n := 0
	if !s.OwnServers {
		n += s.Replicas * s.Parallel
	}
	if !s.OwnTrainer {
		n += s.Ranks
	}
	return n
}

// OneNode says whether servers and trainer share a node of GPUs: what has a node takes the whole of it.
func (s Spec) OneNode() bool {
	return s.TrainerNodes == 1 && !s.OwnServers && !s.OwnTrainer && s.GPUs() <= s.GPUsPerNode
}

// ServerNodes is the number of nodes that the replicas take.
func (s Spec) ServerNodes() int {
	each := 1
	if s.GPUsPerNode > 0 {
		each = max(1, s.GPUsPerNode/max(1, s.Parallel))
	}
	return (s.Replicas + each - 1) / each
}

// PerNode is the number of replicas on one node.
func (s Spec) PerNode() int { return (s.Replicas + s.ServerNodes() - 1) / s.ServerNodes() }

// Shifted is a port as this run has it.
func (s Spec) Shifted(port int) int { return port + s.PortOffset }

// PodFields is kubernetes.pod as YAML, "" where it is empty.
func (s Spec) PodFields() (string, error) {
	if len(s.Kubernetes.Pod) == 0 {
		return "", nil
	}
	b, err := yaml.MarshalWithOptions(s.Kubernetes.Pod, yaml.IndentSequence(true))
	return strings.TrimRight(string(b), "\n"), err
}

// Program is the milepost program.
func (s Spec) Program() string {
	if s.ProgramPath == "" {
		return "milepost"
	}
	return s.ProgramPath
}

// DrainSeconds is how long a scheduler waits for a stopping worker.
func (s Spec) DrainSeconds() int { return int((s.Drain + 30*time.Second).Seconds()) }

// Notice is how many seconds before the time limit SLURM tells the job: the drain, and time to queue it again.
func (s Spec) Notice() int { return max(180, s.DrainSeconds()+90) }

// Root says whether the pods that run agents' commands, and those that write beside them, run as root.
func (s Spec) Root() bool { return !s.Docker && s.Kubernetes.Sandbox == "privileged" }

// Wall is SLURM's form of the time limit.
func (s Spec) Wall() string {
	m := int(s.Slurm.Time.Minutes())
	return fmt.Sprintf("%d-%02d:%02d:00", m/1440, m/60%24, m%60)
}

func (s Spec) render(files map[string]string) (map[string][]byte, error) {
	const op = "launch: render"
	t := template.New("").Option("missingkey=error").Funcs(template.FuncMap{"quote": quote, "inQuotes": inQuotes, "indent": indent, "seq": seq})
	t = t.Funcs(template.FuncMap{"include": func(name string) (string, error) {
		var b bytes.Buffer
		err := t.ExecuteTemplate(&b, name, s)
		return b.String(), err
	}})
	t, err := t.ParseFS(sources, "templates/*")
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInternal, err)
	}
	out := map[string][]byte{}
	for name, from := range files {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, from, s); err != nil {
			return nil, milepost.Wrap(op, milepost.KindInternal, err)
		}
		out[name] = b.Bytes()
	}
	return out, nil
}

// quote makes one word of a shell.
func quote(text string) string { return "'" + inQuotes(text) + "'" }

// inQuotes is text as a shell has it between single quotes.
func inQuotes(text string) string { return strings.ReplaceAll(text, "'", `'\''`) }

// indent moves lines to the right, for block scalars of YAML; empty ones stay empty.
func indent(n int, text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = strings.Repeat(" ", n) + l
		}
	}
	return strings.Join(lines, "\n")
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// GPUList are the GPUs of a replica on one machine, those of the first replica first.
func (s Spec) GPUList(replica int) string { return gpuRange(replica*s.Parallel, s.Parallel) }

// TrainerGPUs are those behind the replicas'.
func (s Spec) TrainerGPUs() string {
	first := s.Replicas * s.Parallel
	if s.OwnServers {
		first = 0
	}
	return gpuRange(first, s.Ranks)
}

func gpuRange(first, n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint(first+i))
	}
	return strings.Join(out, ",")
}

// CPUTasks are the tasks of SLURM's first group: workers and the orchestrator, and at least one for each NATS server.
func (s Spec) CPUTasks() int { return max(s.NATSServers, s.ShadowWorkers+s.RolloutWorkers+1) }

// TaskCPUs is the size of such a task.
func (s Spec) TaskCPUs() int { return max(s.Worker.CPUs, s.Orchestrator.CPUs) }

// TaskMemory is that of one of its processors, as SLURM writes it.
func (s Spec) TaskMemory() string {
	return fmt.Sprintf("%dM", max(s.Worker.MemoryGB, s.Orchestrator.MemoryGB)*1024/s.TaskCPUs())
}

// TrainerGroup is the place of the trainer among SLURM's groups.
func (s Spec) TrainerGroup() int {
	if s.OwnServers || s.OneNode() {
		return 1
	}
	return 2
}

// Het says whether the SLURM job has more than one group.
func (s Spec) Het() bool { return !s.OwnServers || !s.OwnTrainer }

// pod is a kind of pod that runs agents' commands, for its template.
type pod struct {
	Spec
	Part        string
	Count, Port int
	Size        Resources
}

// Pod is the template's view of the orchestrator or of one kind of worker.
func (s Spec) Pod(name string, count, port int) any {
	if name == "run" {
		return pod{s, name, count, port, s.Orchestrator}
	}
	return pod{s, name, count, port, s.Worker}
}

// NATSHosts are the names of the NATS servers in the cluster, separated by blanks.
func (s Spec) NATSHosts() string {
	var out []string
	for i := range s.NATSServers {
		out = append(out, fmt.Sprintf("%s-nats-%d.%s-nats", s.Name, i, s.Name))
	}
	return strings.Join(out, " ")
}
