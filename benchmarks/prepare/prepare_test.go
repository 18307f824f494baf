package prepare_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/prepare"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
)

func TestMain(m *testing.M) { dockertest.Main(m, nil) }

// imageFrom makes an image by a Dockerfile and removes it at the end.
func imageFrom(t *testing.T, host, name, dockerfile string) string {
	t.Helper()
	name = "milepost-testbed/" + name + ":prepare"
	c := exec.Command("docker", "-H", host, "build", "--network", "none", "-q", "-t", name, "-")
	c.Stdin, c.Env = strings.NewReader(dockerfile), append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "-H", host, "rmi", "-f", name).Run() })
	return name
}

// TestProblemsHaveTheirNames prepares a set in which one task is good and every other one wrong in its own way: the good one
// is prepared, the others stay as they were, and each problem names task, image and what is wrong.
func TestProblemsHaveTheirNames(t *testing.T) {
	if testing.Short() {
		t.Skip("makes images")
	}
	cfg := dockertest.Config(t)
	if err := exec.Command("docker", "--version").Run(); err != nil {
		t.Skipf("the docker command makes the images, and is not here: %v", err)
	}
	const repository = "FROM " + dockertest.Image + "\nRUN mkdir -p /testbed/sub && cd /testbed && git init -q && echo x >f && echo y >sub/g && echo '*.so' >.gitignore && echo p >p.so\n" +
		"ENV FROM_IMAGE=1\nRUN mkdir -p /root && echo 'export ACTIVE=yes PATH=/opt/x:$PATH' >~root/.bashrc\n"
	good := imageFrom(t, cfg.Hosts[0], "good", repository)
	noGit := imageFrom(t, cfg.Hosts[0], "no-git", repository+"RUN rm /usr/bin/git\n")
	task := func(id, image, workdir string, prepare ...string) *milepost.Task {
		return &milepost.Task{ID: id, Kind: milepost.BugRepair, Statement: "s", Image: image, Workdir: workdir, Prepare: prepare, BaseCommit: "0123456789abcdef0123456789abcdef01234567",
			ReferencePatch: "p", RelevantFiles: []string{"f"}, Tests: []string{"a"}, FailToPass: []string{"a"},
			Test: milepost.TestCommand{Argv: []string{"python3", "-m", "unittest"}, Format: "unittest", Env: map[string]string{"ACTIVE": "task"}}}
	}
	dir := t.TempDir()
	if err := benchmarks.Save(dir, []*milepost.Task{
		task("good", good, "/testbed", "echo prepared >f; rm -r sub"), task("no-image", "milepost-testbed/absent:1", "/testbed"), task("no-folder", good, "/elsewhere"),
		task("no-git", noGit, "/testbed"), task("prepare-fails", good, "/testbed", "true", "echo why >&2; exit 3"),
	}); err != nil {
		t.Fatal(err)
	}
	d, err := docker.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(d)
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := &prepare.Preparer{Env: e, Images: d, Jobs: 2, Scratch: t.TempDir()}
	sum, err := p.Set(t.Context(), dir)
	if err != nil || sum.Prepared != 1 || sum.Bases != 1 || len(sum.Problems) != 4 {
		t.Fatalf("%+v %v", sum, err)
	}
	reasons := map[string]string{}
	for _, p := range sum.Problems {
		reasons[p.Task] = p.Reason
	}
	for id, words := range map[string][]string{
		"no-image": {"no-image", "milepost-testbed/absent:1"}, "no-folder": {"no-folder", "has no files in /elsewhere", "sha256:"},
		"no-git": {"no-git", "sha256:", "has no git"}, "prepare-fails": {"prepare-fails", "command 2 ended with 3", "why"},
	} {
		for _, w := range words {
			if !strings.Contains(reasons[id], w) {
				t.Errorf("%s: %q does not say %q", id, reasons[id], w)
			}
		}
	}
	tasks, err := benchmarks.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := benchmarks.RequirePrepared(dir, tasks); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "4 of 5 tasks are not prepared") {
		t.Errorf("a set that is partly prepared: %v", err)
	}
	files, err := exec.Command("git", "--git-dir="+filepath.Join(dir, prepare.BasesFolder), "ls-tree", "-r", "--name-only", tasks[0].BaseTree).Output()
	if err != nil || string(files) != ".gitignore\nf\np.so\n" {
		t.Errorf("files of the base: %q %v", files, err)
	}
	if got := tasks[0].Test.Env; got["ACTIVE"] != "task" || !strings.HasPrefix(got["PATH"], "/opt/x:") || got["FROM_IMAGE"] != "" || got["HOME"] != "" {
		t.Errorf("the environment of the prepared task: %v", got)
	}
	if sum, err = p.Set(t.Context(), dir); err != nil || sum.Kept != 1 || sum.Prepared != 0 {
		t.Errorf("again: %+v %v", sum, err)
	}
}
