package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

func spec(change func(*Spec)) Spec {
	s := Spec{
		Config: Default(), Name: "try", Run: "/shared/runs/it's", Resolved: []byte("run:\n  name: try\n\nmodel: /shared/m\n"), Model: "/shared/m", Files: []string{"/shared/tasks"},
		Parallel: 1, Ranks: 1, Drain: time.Minute,
	}
	if change != nil {
		change(&s)
	}
	return s
}

func cluster(s *Spec) {
	s.NATSServers, s.GPUsPerNode, s.Replicas, s.Parallel, s.TrainerNodes, s.Ranks, s.RolloutWorkers, s.ShadowWorkers = 3, 8, 6, 2, 2, 8, 2, 4
	s.Docker, s.Slurm.Account, s.Slurm.Partition, s.Slurm.CPUs, s.Slurm.Setup = true, "lab", "gpu", "cpu", []string{"module load cuda", "export GREETING='it is on'"}
}

// oneNode is what servers and trainer share a node of 8 GPUs with.
func oneNode(s *Spec) { s.GPUsPerNode, s.Replicas, s.Parallel, s.TrainerNodes, s.Ranks = 8, 2, 2, 1, 4 }

// variants are the shapes that templates branch on.
var variants = map[string]func(*Spec){
	"small": nil, "cluster": cluster,
	"own servers": func(s *Spec) { cluster(s); s.OwnServers = true },
	"own trainer": func(s *Spec) { cluster(s); s.OwnTrainer, s.Docker = true, false },
	"all own":     func(s *Spec) { s.OwnServers, s.OwnTrainer, s.ShadowWorkers = true, true, 0 },
	"no box":      func(s *Spec) { s.Kubernetes.Sandbox = "none" },
	"pod": func(s *Spec) {
		cluster(s)
		s.Kubernetes.Pod = map[string]any{
			"nodeSelector": map[string]any{"gpu": "h100"}, "imagePullSecrets": []any{map[string]any{"name": "registry"}},
			"tolerations": []any{map[string]any{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}},
		}
	},
	"one node":   func(s *Spec) { cluster(s); oneNode(s) },
	"transfer":   func(s *Spec) { cluster(s); s.Transfer = true },
	"yaml words": func(s *Spec) { s.Name, s.Kubernetes.Namespace, s.Kubernetes.Claim = "on", "123", "null" },
}

func tool(t *testing.T, name string) string {
	t.Helper()
	environment, err := trainerbridge.Environment(trainerbridge.EnvTools)
	if err != nil {
		t.Skip(err)
	}
	return filepath.Join(environment, "bin", name)
}

// TestScripts: what local and slurm get is what bash parses and shellcheck has nothing to say of.
func TestScripts(t *testing.T) {
	shellcheck := tool(t, "shellcheck")
	for name, change := range variants {
		for _, target := range []string{"local", "slurm"} {
			s := spec(change)
			if target == "local" {
				s.GPUsPerNode = 32
				s.TrainerNodes = 1
			}
			out := filepath.Join(t.TempDir(), "out")
			files, err := Write(target, out, s)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, target, err)
			}
			for _, f := range files {
				if f == "config.yaml" {
					continue
				}
				path := filepath.Join(out, f)
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("%s, %s: %s has mode %v, %v", name, target, f, info.Mode(), err)
				}
				if b, err := exec.Command("bash", "-n", path).CombinedOutput(); err != nil {
					t.Errorf("%s, %s: bash -n %s: %s", name, target, f, b)
				}
				if b, err := exec.Command(shellcheck, "--severity=style", path).CombinedOutput(); err != nil {
					t.Errorf("%s, %s: shellcheck %s: %v\n%s", name, target, f, err, b)
				}
			}
		}
	}
}

// TestSlurmTakesIt: sbatch itself, asked whether it would run the job, says when and where; one that wants more nodes than
// there are it refuses.
func TestSlurmTakesIt(t *testing.T) {
	script, err := filepath.Abs("../../build/slurm")
	if err != nil {
		t.Fatal(err)
	}
	if why, err := exec.Command(script, "missing").Output(); err != nil || len(why) > 0 {
		t.Skipf("no SLURM controller can be started: %s", why)
	}
	dir, err := os.MkdirTemp("", "milepost-slurm-") // munged refuses folders that others may write, t.TempDir's above among them
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b, err := exec.Command(script, "stop", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, b)
		}
	})
	conf, err := exec.Command(script, "start", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(change func(*Spec)) (string, error) {
		out := filepath.Join(t.TempDir(), "out")
		if _, err := Write("slurm", out, spec(change)); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("sbatch", "--test-only", "run.sbatch")
		c.Dir, c.Env = out, append(os.Environ(), "SLURM_CONF="+strings.TrimSpace(string(conf)))
		b, err := c.CombinedOutput()
		return string(b), err
	}
	for name, change := range variants {
		unpaid := func(s *Spec) { // the controller knows of no accounts
			if change != nil {
				change(s)
			}
			s.Slurm.Account = ""
		}
		if said, err := ask(unpaid); err != nil || !strings.Contains(said, "to start at") {
			t.Errorf("%s: %v: %s", name, err, said)
		}
	}
	if said, err := ask(func(s *Spec) { cluster(s); s.Slurm.Account, s.TrainerNodes = "", 33 }); err == nil {
		t.Errorf("33 nodes of 32: %s", said)
	}
}

// kubernetesVersion is the oldest API that the manifests are for: init containers that go on are on by default in it.
const kubernetesVersion = "1.29.0"

// TestManifests: what Kubernetes gets fits the schemas of its API, strictly, and what refers to something finds it.
func TestManifests(t *testing.T) {
	validate := tool(t, "kubernetes-validate")
	for name, change := range variants {
		out := filepath.Join(t.TempDir(), "out")
		files, err := Write("kubernetes", out, spec(change))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(files)
		args := []string{"--strict", "--quiet", "-k", kubernetesVersion}
		var all []map[string]any
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(out, f))
			if err != nil {
				t.Fatal(err)
			}
			dec := yaml.NewDecoder(strings.NewReader(string(b)), yaml.Strict())
			n := len(all)
			for {
				var doc map[string]any
				if err := dec.Decode(&doc); err != nil {
					if err.Error() != "EOF" {
						t.Fatalf("%s: %s: %v\n%s", name, f, err, b)
					}
					break
				}
				if doc != nil {
					all = append(all, doc)
				}
			}
			if len(all) > n {
				args = append(args, filepath.Join(out, f))
			}
		}
		if b, err := exec.Command(validate, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: kubernetes-validate: %v\n%s", name, err, b)
		}
		refer(t, name, all)
	}
}

// refer checks what no schema does: labels, mounts, ports of probes, and services.
func refer(t *testing.T, name string, all []map[string]any) {
	t.Helper()
	services := map[string]bool{}
	for _, o := range all {
		if o["kind"] == "Service" {
			services[o["metadata"].(map[string]any)["name"].(string)] = true
		}
	}
	for _, o := range all {
		object := o["kind"].(string) + " " + o["metadata"].(map[string]any)["name"].(string)
		sp, _ := o["spec"].(map[string]any)
		template, ok := sp["template"].(map[string]any)
		if !ok {
			continue
		}
		labels := template["metadata"].(map[string]any)["labels"].(map[string]any)
		if sel, ok := sp["selector"].(map[string]any); ok {
			for k, v := range sel["matchLabels"].(map[string]any) {
				if labels[k] != v {
					t.Errorf("%s: %s selects %s=%v, its pods have %v", name, object, k, v, labels[k])
				}
			}
		}
		if s, ok := sp["serviceName"].(string); ok && !services[s] {
			t.Errorf("%s: %s names service %s, which is not there", name, object, s)
		}
		pod := template["spec"].(map[string]any)
		volumes := map[string]bool{}
		for _, list := range []any{pod["volumes"], sp["volumeClaimTemplates"]} {
			items, _ := list.([]any)
			for _, v := range items {
				m := v.(map[string]any)
				if meta, ok := m["metadata"].(map[string]any); ok {
					m = meta
				}
				volumes[m["name"].(string)] = true
			}
		}
		inits, _ := pod["initContainers"].([]any)
		for _, c := range append(inits, pod["containers"].([]any)...) {
			container := c.(map[string]any)
			for _, m := range container["volumeMounts"].([]any) {
				if v := m.(map[string]any)["name"].(string); !volumes[v] {
					t.Errorf("%s: %s mounts %s, which is no volume of it", name, object, v)
				}
			}
			if container["resources"] == nil || container["livenessProbe"] == nil && container["readinessProbe"] == nil {
				t.Errorf("%s: %s: container %v has no resources or no probe", name, object, container["name"])
			}
			security(t, name+": "+object, pod, container)
		}
	}
}

// security checks that whoever mounts the secret, 0440 of root's, can read it, and that no probe kills a part for the sake
// of another: workers' and the orchestrator's /healthz speak of others.
func security(t *testing.T, where string, pod, container map[string]any) {
	t.Helper()
	all, _ := pod["securityContext"].(map[string]any)
	own, _ := container["securityContext"].(map[string]any)
	user := all["runAsUser"]
	if u, ok := own["runAsUser"]; ok {
		user = u
	}
	for _, m := range container["volumeMounts"].([]any) {
		if m.(map[string]any)["name"] == "token" && fmt.Sprint(user) != "0" && fmt.Sprint(all["fsGroup"]) != "1000" {
			t.Errorf("%s: user %v of container %v cannot read the token: %v", where, user, container["name"], all)
		}
	}
	for _, probe := range []string{"startupProbe", "livenessProbe"} {
		p, _ := container[probe].(map[string]any)
		if get, ok := p["httpGet"].(map[string]any); ok && get["port"] == "metrics" {
			t.Errorf("%s: %s of %v asks for %v", where, probe, container["name"], get)
		}
	}
}

// TestNoSecrets: nothing that is written holds one, and every file says who wrote it.
func TestNoSecrets(t *testing.T) {
	for _, target := range Targets() {
		out := filepath.Join(t.TempDir(), "out")
		files, err := Write(target, out, spec(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(out, f))
			if err != nil {
				t.Fatal(err)
			}
			if f != "config.yaml" && !strings.Contains(string(b), "Written by milepost launch.") {
				t.Errorf("%s: %s does not say who wrote it", target, f)
			}
			if strings.Contains(string(b), "kind: Secret\n") {
				t.Errorf("%s: %s holds a secret", target, f)
			}
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		target, out, want string
		kind              milepost.Kind
		change            func(*Spec)
	}{
		"a folder with something in it": {"local", full, "is not empty", milepost.KindConflict, nil},
		"no such target":                {"ray", "", `no target is called "ray"; allowed: local, slurm, kubernetes`, milepost.KindInvalid, nil},
		"a name":                        {"slurm", "", `run.name is "Mine_1"`, milepost.KindInvalid, func(s *Spec) { s.Name = "Mine_1" }},
		"several nodes on one machine":  {"local", "", "target local is one machine", milepost.KindInvalid, func(s *Spec) { s.TrainerNodes = 2 }},
		"too few GPUs":                  {"local", "", "launch.replicas x server.tensor_parallel + trainer.ranks is 10; allowed on one machine: launch.gpus_per_node, 8", milepost.KindInvalid, func(s *Spec) { s.GPUsPerNode, s.Replicas, s.Parallel, s.Ranks = 8, 2, 4, 2 }},
		"a replica over two nodes":      {"slurm", "", "a replica lies on one node", milepost.KindInvalid, func(s *Spec) { s.GPUsPerNode, s.Parallel = 4, 8 }},
		"a trainer nobody finds":        {"slurm", "", "weights.transfer.host is a loopback address, where servers on other nodes do not find the trainer of trainer.address; allowed: ", milepost.KindInvalid, func(s *Spec) { s.Transfer, s.OwnTrainer = true, true }},
		"a name of services":            {"kubernetes", "", `run.name is "1st"; it names services`, milepost.KindInvalid, func(s *Spec) { s.Name = "1st" }},
		"trackers without keys":         {"kubernetes", "", "trackers are enabled", milepost.KindInvalid, func(s *Spec) { s.Trackers = true }},
		"no time to stop":               {"slurm", "", "launch.slurm.time is 7m30s, and parts are stopped 420 s before its end", milepost.KindInvalid, func(s *Spec) { s.Drain, s.Slurm.Time = 5*time.Minute, 450*time.Second }},
		"outside of the volume":         {"kubernetes", "", "/data/tasks is not below launch.kubernetes.mount, /shared", milepost.KindInvalid, func(s *Spec) { s.Files = []string{"/data/tasks"} }},
	} {
		out := c.out
		if out == "" {
			out = filepath.Join(t.TempDir(), "out")
		}
		_, err := Write(c.target, out, spec(c.change))
		if milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if entries, _ := os.ReadDir(out); c.out == "" && len(entries) > 0 {
			t.Errorf("%s: %d files were written", name, len(entries))
		}
	}
	for name, change := range map[string]func(*Spec){
		"an empty folder": nil, "all GPUs": oneNode,
		"GPUs of the trainer alone": func(s *Spec) { oneNode(s); s.OwnServers, s.Ranks = true, 8 },
	} {
		if _, err := Write("local", t.TempDir(), spec(change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"nats_servers is 2": func(c *Config) { c.NATSServers = 2 },
		`kubernetes.image is "a: b #c\nd: e"; allowed: letters`:               func(c *Config) { c.Kubernetes.Image = "a: b #c\nd: e" },
		`slurm.account is "x\n#SBATCH --wrap=1"; allowed: letters`:            func(c *Config) { c.Slurm.Account = "x\n#SBATCH --wrap=1" },
		`command is "eval"; allowed: train, rft`:                              func(c *Config) { c.Command = "eval" },
		"port_offset is 30001; allowed: 0 to 30000":                           func(c *Config) { c.PortOffset = 30001 },
		"kubernetes.pod has volumes, which the manifests set; allowed: other": func(c *Config) { c.Kubernetes.Pod = map[string]any{"volumes": nil} },
		"replicas is 0":          func(c *Config) { c.Replicas = 0 },
		"slurm.time is 1s":       func(c *Config) { c.Slurm.Time = time.Second },
		"kubernetes.namespace":   func(c *Config) { c.Kubernetes.Namespace = "A b" },
		"kubernetes.mount":       func(c *Config) { c.Kubernetes.Mount = "shared" },
		"kubernetes.sandbox is":  func(c *Config) { c.Kubernetes.Sandbox = "some" },
		"worker.cpus is 0":       func(c *Config) { c.Worker.CPUs = 0 },
		"kubernetes.nats_storag": func(c *Config) { c.Kubernetes.NATSStorage = "much" },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}
