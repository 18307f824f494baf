package launch

import (
	"regexp"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// Config says how many of each part there are and on which machines.
type Config struct {
	Command        string     `yaml:"command"`         // what the recipe is for: train, or rft, which milepost launch does not start
	GPU            string     `yaml:"gpu"`             // kind of the GPUs, which milepost plan reckons with (milepost plan --help lists them); "" = none
	Shape          string     `yaml:"shape"`           // shape that milepost plan reckons with where model is empty; "" = none
	GPUsPerNode    int        `yaml:"gpus_per_node"`   // GPUs of one node; 0 = nodes without
	Replicas       int        `yaml:"replicas"`        // vLLM replicas, each on server.tensor_parallel GPUs of one node
	TrainerNodes   int        `yaml:"trainer_nodes"`   // nodes of the trainer, each with trainer.ranks processes
	RolloutWorkers int        `yaml:"rollout_workers"` // processes that run agent loops; 0 = the orchestrator runs them itself
	ShadowWorkers  int        `yaml:"shadow_workers"`  // processes that run tests beside the agents; 0 = the orchestrator runs them itself
	NATSServers    int        `yaml:"nats_servers"`    // 1, or a cluster of 3 of which one may die
	PortOffset     int        `yaml:"port_offset"`     // added to every port of local and slurm, so that runs that share a machine can differ
	Orchestrator   Resources  `yaml:"orchestrator"`    // of the orchestrator
	Worker         Resources  `yaml:"worker"`          // of one rollout or shadow worker
	Slurm          Slurm      `yaml:"slurm"`           // for --target slurm
	Kubernetes     Kubernetes `yaml:"kubernetes"`      // for --target kubernetes
}

// Resources are what a part without GPUs asks the scheduler for.
type Resources struct {
	CPUs     int `yaml:"cpus"`      // processors
	MemoryGB int `yaml:"memory_gb"` // memory in GiB
}

// Slurm is what differs from cluster to cluster.
type Slurm struct {
	Partition string        `yaml:"partition"` // of the nodes with GPUs, or of all; "" = the cluster's default
	CPUs      string        `yaml:"cpus"`      // partition of orchestrator, NATS and workers; "" = partition
	Account   string        `yaml:"account"`   // who pays; "" = the user's default
	Time      time.Duration `yaml:"time"`      // limit of the job; a run that reaches it is begun again and resumes
	Setup     []string      `yaml:"setup"`     // shell lines before everything on every node, such as: module load cuda
}

// Kubernetes is what differs from cluster to cluster.
type Kubernetes struct {
	Namespace    string         `yaml:"namespace"`     // of everything; it must exist
	Image        string         `yaml:"image"`         // of orchestrator, workers and NATS: target orchestrator of docker/Dockerfile
	TrainerImage string         `yaml:"trainer_image"` // target trainer
	ServerImage  string         `yaml:"server_image"`  // target server: vLLM with the milepost program
	EngineImage  string         `yaml:"engine_image"`  // Docker engine beside each pod that runs agents or tests, where sandbox.driver is docker
	Claim        string         `yaml:"claim"`         // PersistentVolumeClaim, ReadWriteMany, with run folder, model and tasks
	Mount        string         `yaml:"mount"`         // where it is mounted in every container
	GPUResource  string         `yaml:"gpu_resource"`  // name of the GPUs as a resource
	NATSStorage  string         `yaml:"nats_storage"`  // size of each NATS server's own volume
	Pod          map[string]any `yaml:"pod"`           // further fields of every pod, such as {nodeSelector: {gpu: h100}}; not those that the manifests set
	Sandbox      string         `yaml:"sandbox"`       // security of pods that run agents' commands: privileged (bubblewrap needs namespaces) or none
}

// The values of Config.Command.
const (
	CommandTrain = "train"
	CommandRFT   = "rft"
)

// Default is a run without GPUs on one machine.
func Default() Config {
	return Config{
		Command: CommandTrain, Replicas: 1, TrainerNodes: 1, ShadowWorkers: 1, NATSServers: 1,
		Orchestrator: Resources{CPUs: 4, MemoryGB: 16}, Worker: Resources{CPUs: 8, MemoryGB: 32},
		Slurm: Slurm{Time: 24 * time.Hour},
		Kubernetes: Kubernetes{Namespace: "milepost", Image: "milepost/orchestrator:local", TrainerImage: "milepost/trainer:local", ServerImage: "milepost/server:local", EngineImage: "docker:28-dind",
			Claim: "milepost-shared", Mount: "/shared", GPUResource: "nvidia.com/gpu", NATSStorage: "20Gi", Sandbox: "privileged"},
	}
}

// podFields are those of a pod that the manifests set.
var podFields = []string{"affinity", "automountServiceAccountToken", "containers", "initContainers", "restartPolicy", "securityContext", "terminationGracePeriodSeconds", "volumes"}

var (
	dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	word     = regexp.MustCompile(`^[A-Za-z0-9._/:@,+-]*$`)
	quantity = regexp.MustCompile(`^[0-9]+(Ki|Mi|Gi|Ti)$`)
)

// Validate names the first field out of range and what is allowed.
func (c Config) Validate() error {
	const op = "launch: configuration"
	for _, f := range []struct {
		name       string
		value, low int
	}{
		{"gpus_per_node", c.GPUsPerNode, 0}, {"replicas", c.Replicas, 1}, {"trainer_nodes", c.TrainerNodes, 1},
		{"rollout_workers", c.RolloutWorkers, 0}, {"shadow_workers", c.ShadowWorkers, 0},
		{"orchestrator.cpus", c.Orchestrator.CPUs, 1}, {"orchestrator.memory_gb", c.Orchestrator.MemoryGB, 1},
		{"worker.cpus", c.Worker.CPUs, 1}, {"worker.memory_gb", c.Worker.MemoryGB, 1},
	} {
		if f.value < f.low {
			return milepost.E(op, milepost.KindInvalid, "%s is %d; allowed: %d or more", f.name, f.value, f.low)
		}
	}
	k := c.Kubernetes
	for _, name := range podFields {
		if _, ok := k.Pod[name]; ok {
			return milepost.E(op, milepost.KindInvalid, "kubernetes.pod has %s, which the manifests set; allowed: other fields of a pod, such as tolerations, nodeSelector, imagePullSecrets", name)
		}
	}
	switch {
	case c.Command != CommandTrain && c.Command != CommandRFT:
		return milepost.E(op, milepost.KindInvalid, "command is %q; allowed: %s, %s", c.Command, CommandTrain, CommandRFT)
	case c.NATSServers != 1 && c.NATSServers != 3:
		return milepost.E(op, milepost.KindInvalid, "nats_servers is %d; allowed: 1, or 3 for a cluster", c.NATSServers)
	case c.PortOffset < 0 || c.PortOffset > 30000:
		return milepost.E(op, milepost.KindInvalid, "port_offset is %d; allowed: 0 to 30000", c.PortOffset)
	case c.Slurm.Time < time.Minute:
		return milepost.E(op, milepost.KindInvalid, "slurm.time is %v; allowed: 1m or more", c.Slurm.Time)
	case !dnsLabel.MatchString(k.Namespace):
		return milepost.E(op, milepost.KindInvalid, "kubernetes.namespace is %q; allowed: lower case letters, digits and dashes", k.Namespace)
	case !dnsLabel.MatchString(k.Claim):
		return milepost.E(op, milepost.KindInvalid, "kubernetes.claim is %q; allowed: lower case letters, digits and dashes", k.Claim)
	case len(k.Mount) < 2 || k.Mount[0] != '/':
		return milepost.E(op, milepost.KindInvalid, "kubernetes.mount is %q; allowed: an absolute path", k.Mount)
	case !quantity.MatchString(k.NATSStorage):
		return milepost.E(op, milepost.KindInvalid, "kubernetes.nats_storage is %q; allowed: a size such as 20Gi", k.NATSStorage)
	case k.Sandbox != "privileged" && k.Sandbox != "none":
		return milepost.E(op, milepost.KindInvalid, "kubernetes.sandbox is %q; allowed: privileged, none", k.Sandbox)
	case k.Image == "" || k.TrainerImage == "" || k.ServerImage == "" || k.EngineImage == "" || k.GPUResource == "":
		return milepost.E(op, milepost.KindInvalid, "kubernetes.image, trainer_image, server_image, engine_image and gpu_resource must be set")
	}
	return c.checkWords()
}

// checkWords refuses what would end the word in a manifest or batch file that it stands for.
func (c Config) checkWords() error {
	k := c.Kubernetes
	for _, f := range []struct{ name, value string }{
		{"kubernetes.image", k.Image}, {"kubernetes.trainer_image", k.TrainerImage}, {"kubernetes.server_image", k.ServerImage}, {"kubernetes.engine_image", k.EngineImage},
		{"kubernetes.gpu_resource", k.GPUResource}, {"kubernetes.mount", k.Mount}, {"slurm.partition", c.Slurm.Partition}, {"slurm.cpus", c.Slurm.CPUs}, {"slurm.account", c.Slurm.Account},
	} {
		if !word.MatchString(f.value) {
			return milepost.E("launch: configuration", milepost.KindInvalid, "%s is %q; allowed: letters, digits and any of . _ - / : @ , +", f.name, f.value)
		}
	}
	return nil
}
