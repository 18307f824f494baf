package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// objects are the manifests of one file.
func objects(t *testing.T, s Spec, file string) []map[string]any {
	t.Helper()
	texts, err := s.render(targets["kubernetes"])
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(texts[file]))
	var all []map[string]any
	for {
		var doc map[string]any
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, texts[file])
		}
		if doc != nil {
			all = append(all, doc)
		}
	}
}

// at is what lies below keys and indices, printed.
func at(t *testing.T, v any, path ...any) string {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return "none"
			}
			v = l[p]
		}
	}
	return fmt.Sprint(v)
}

// TestEngine: the Docker engine of a pod is a sidecar that ends with the pod, starts first, and has the room for what runs in it.
func TestEngine(t *testing.T) {
	s := spec(cluster)
	for file, size := range map[string]Resources{"run.yaml": s.Orchestrator, "workers.yaml": s.Worker} {
		pods := objects(t, s, file)
		if len(pods) == 0 {
			t.Fatal(file)
		}
		for _, o := range pods {
			pod := o["spec"].(map[string]any)["template"].(map[string]any)["spec"]
			cpu, memory := fmt.Sprint(size.CPUs), fmt.Sprintf("%dGi", size.MemoryGB)
			for _, c := range []struct {
				want string
				path []any
			}{
				{"engine", []any{"initContainers", 0, "name"}}, {"Always", []any{"initContainers", 0, "restartPolicy"}},
				{cpu, []any{"initContainers", 0, "resources", "requests", "cpu"}}, {memory, []any{"initContainers", 0, "resources", "requests", "memory"}},
				{"1", []any{"containers", 0, "resources", "requests", "cpu"}}, {"2Gi", []any{"containers", 0, "resources", "requests", "memory"}},
				{"none", []any{"containers", 1}},
			} {
				if got := at(t, pod, c.path...); got != c.want {
					t.Errorf("%s: %v is %s, want %s", file, c.path, got, c.want)
				}
			}
		}
	}
	s.Docker = false
	run := objects(t, s, "run.yaml")[0]["spec"]
	if got := at(t, run, "template", "spec", "containers", 0, "resources", "requests", "cpu"); got != "4" {
		t.Errorf("without an engine the orchestrator asks for %s processors", got)
	}
	if got := at(t, run, "template", "spec", "containers", 0, "startupProbe", "failureThreshold"); got != "720" {
		t.Errorf("the run has %s periods to start", got)
	}
}

// TestPodFields: what kubernetes.pod says is in every pod, and nothing is where it says nothing.
func TestPodFields(t *testing.T) {
	for name, want := range map[string]string{"cluster": "<nil>", "pod": "map[gpu:h100]"} {
		s, pods := spec(variants[name]), 0
		for file := range targets["kubernetes"] {
			for _, o := range objects(t, s, file) {
				if at(t, o, "spec", "template") == "<nil>" {
					continue
				}
				pods++
				if got := at(t, o, "spec", "template", "spec", "nodeSelector"); got != want {
					t.Errorf("%s: %s has nodeSelector %s", name, file, got)
				}
			}
		}
		if pods != 6 {
			t.Errorf("%s: %d pods", name, pods)
		}
	}
}

// TestOneUser: trainer and orchestrator, who write into each other's folders, are one user.
func TestOneUser(t *testing.T) {
	for name, c := range map[string]struct {
		want   string
		change func(*Spec)
	}{
		"bubblewrap": {"0", nil}, "engine": {"1000", func(s *Spec) { s.Docker = true }}, "none": {"1000", variants["no box"]},
	} {
		s := spec(c.change)
		run, trainer := objects(t, s, "run.yaml")[0]["spec"], objects(t, s, "trainer.yaml")[1]["spec"]
		user := at(t, run, "template", "spec", "containers", 0, "securityContext", "runAsUser")
		if user == "<nil>" {
			user = at(t, run, "template", "spec", "securityContext", "runAsUser")
		}
		if got := at(t, trainer, "template", "spec", "securityContext", "runAsUser"); user != c.want || got != c.want {
			t.Errorf("%s: the orchestrator is user %s, the trainer %s, want %s", name, user, got, c.want)
		}
	}
}

// TestSlurmNode runs what every step runs on its node: the lines of slurm.setup as they are, then the part with the node's
// address, which is that of its name where the name has one.
func TestSlurmNode(t *testing.T) {
	s := spec(variants["transfer"])
	texts, err := s.render(targets["slurm"])
	if err != nil {
		t.Fatal(err)
	}
	text := string(texts["run.sbatch"])
	begin := strings.Index(text, "on_node='")
	end := strings.Index(text, "\nsteps=()")
	if begin < 0 || end < begin {
		t.Fatal(text)
	}
	if !strings.Contains(text, "--overlap --mem=0 --kill-on-bad-exit=0") {
		t.Error("steps have the first group's memory")
	}
	dir := t.TempDir()
	for name, body := range map[string]string{
		"module": "", "hostname": `if [ "${1:-}" = -I ]; then echo 10.9.9.9 10.0.0.1; else echo n1; fi`,
		"getent":  `[ "$*" != "ahostsv4 n7" ] || printf '127.0.1.1 STREAM n7\n10.1.2.3 STREAM n7\n10.1.2.4 DGRAM\n'`,
		"part.sh": `echo "$1 $2 at $MILEPOST_HOST, $GREETING, GPUs ${CUDA_VISIBLE_DEVICES:-none}, trainer $MILEPOST_TRANSFER_HOST"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ node, part, trainer, want string }{
		{"n7", "serve", "n7", "serve 3 at 10.1.2.3, it is on, GPUs 2,3, trainer 10.1.2.3"},
		{"n8", "shadow", "n8", "shadow 3 at 10.9.9.9, it is on, GPUs none, trainer 10.9.9.9"},
	} {
		cmd := exec.Command("bash", "-c", text[begin:end]+"\nbash -c \"$on_node\" part "+c.part)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "MILEPOST_DIR="+dir, "MILEPOST_LOCAL="+dir, "MILEPOST_TRAINER_HOST="+c.trainer, "SLURMD_NODENAME="+c.node, "SLURM_PROCID=3", "SLURM_LOCALID=1")
		if b, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(b)) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.node, b, err, c.want)
		}
	}
}

// TestSlurmGroups: servers and trainer that fit one node have one group, whose GPUs they share; what does not fit has two.
func TestSlurmGroups(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Spec)
		groups int
		want   []string
	}{
		"one node":       {oneNode, 2, []string{"step 1 serve 2 --nodes=1\n", "step 1 trainer 1 --nodes=1\n", `if [ "$1" = trainer ]; then export CUDA_VISIBLE_DEVICES=4,5,6,7; fi`, "HET_GROUP_1\" |"}},
		"a GPU too many": {func(s *Spec) { oneNode(s); s.Ranks = 5 }, 3, []string{"step 1 serve 2 --nodes=1\n", "step 2 trainer 1 --nodes=1\n", "HET_GROUP_2\" |"}},
		"two nodes":      {func(s *Spec) { oneNode(s); s.TrainerNodes = 2 }, 3, []string{"step 2 trainer 2 --nodes=2\n"}},
		"no GPUs":        {func(s *Spec) { oneNode(s); s.GPUsPerNode = 0 }, 3, []string{"step 2 trainer 1 --nodes=1\n"}},
		"own trainer":    {func(s *Spec) { oneNode(s); s.OwnTrainer = true }, 2, []string{"step 1 serve 2 --nodes=1\n"}},
	} {
		texts, err := spec(c.change).render(targets["slurm"])
		if err != nil {
			t.Fatal(err)
		}
		text := string(texts["run.sbatch"])
		if n := 1 + strings.Count(text, "#SBATCH hetjob\n"); n != c.groups {
			t.Errorf("%s: %d groups, want %d", name, n, c.groups)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
	}
}

// TestPortOffset: it is added to every port of part.sh, and to none in Kubernetes.
func TestPortOffset(t *testing.T) {
	port := regexp.MustCompile(`\b(4222|6222|8222|8000|29600|29500|9464|9500|9600)\b`)
	written := func(target, file string, offset int) string {
		out := filepath.Join(t.TempDir(), "out")
		if _, err := Write(target, out, spec(func(s *Spec) { cluster(s); s.TrainerNodes, s.GPUsPerNode, s.PortOffset = 1, 32, offset })); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for target, file := range map[string]string{"local": "part.sh", "slurm": "part.sh", "kubernetes": "nats.yaml"} {
		plain, shifted := written(target, file, 0), written(target, file, 100)
		want := plain
		if target != "kubernetes" {
			want = port.ReplaceAllStringFunc(plain, func(p string) string { n, _ := strconv.Atoi(p); return strconv.Itoa(n + 100) })
		}
		if len(port.FindAllString(plain, -1)) < 9 || shifted != want {
			t.Errorf("%s: %s", target, shifted)
		}
	}
}

// TestSlurmNotice: SLURM speaks before the slowest part has to be gone.
func TestSlurmNotice(t *testing.T) {
	for drain, want := range map[time.Duration]string{time.Minute: "B:TERM@180\n", 5 * time.Minute: "B:TERM@420\n"} {
		texts, err := spec(func(s *Spec) { s.Drain = drain }).render(targets["slurm"])
		if err != nil || !strings.Contains(string(texts["run.sbatch"]), want) {
			t.Errorf("a drain of %v: no %s, %v", drain, want, err)
		}
	}
}

// TestDockerfile: whoever asks who it is gets an answer in every image, as PyTorch does when it looks for a cache.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, stage := range []string{" AS program\n", " AS server\n"} {
		_, after, _ := strings.Cut(string(text), stage)
		after, _, _ = strings.Cut(after, "\nFROM ")
		for _, want := range []string{":x:1000:1000:", "HOME=/var/lib/milepost", "USER=milepost", "LOGNAME=milepost"} {
			if !strings.Contains(after, want) {
				t.Errorf("stage%s has no %s:\n%s", stage, want, after)
			}
		}
	}
}
