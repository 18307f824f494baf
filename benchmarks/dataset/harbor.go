package dataset

import (
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	milepost "github.com/milepost-rl/milepost"
)

var harbor = &Format{
	Name:   "harbor",
	About:  "Harbor task folders: instruction.md, task.toml, environment/Dockerfile, tests/test.sh",
	Source: "the Harbor task format, as its documentation gives it",
	Needs:  []string{"instance_id", "instruction.md", "task.toml", "tests/test.sh"},
	Match:  func(*Row) int { return 6 },
	Map:    mapHarbor,
}

// harborFile is what is read of task.toml; the rest stays in the kept row.
type harborFile struct {
	Metadata map[string]any `toml:"metadata"`
	Verifier struct {
		Timeout float64 `toml:"timeout_sec"`
	} `toml:"verifier"`
	Environment struct {
		Image string `toml:"docker_image"`
	} `toml:"environment"`
}

// mapHarbor: the folder is copied beside the tasks. Its folder tests comes into the container as /tests when the agent is
// done; the solution is a script, not a patch, and stays in the folder. An image without a name is built from
// environment/ and goes by the hash of that folder.
func mapHarbor(r *Row, assets *Assets) (*milepost.Task, error) {
	var f harborFile
	if _, err := toml.Decode(r.MustText("task.toml"), &f); err != nil {
		r.fail("task.toml", "not TOML of the form: %w", err)
		return nil, nil
	}
	t := &milepost.Task{Kind: milepost.OpenTask, Statement: r.MustText("instruction.md"), Image: f.Environment.Image,
		Workdir: lastWorkdir(r.Text("environment/Dockerfile")),
		Grading: &milepost.Grading{Rule: milepost.GradeRewardFile, Commands: []string{"bash /tests/test.sh"}, Output: "/logs/verifier/reward.txt"}}
	if t.Image == "" {
		sum := r.Text("environment")
		if sum == "" {
			r.fail("environment/Dockerfile", "missing, and task.toml has no environment.docker_image; one of them is wanted")
		}
		t.Image = "build:" + sum
	}
	if f.Verifier.Timeout < 0 || f.Verifier.Timeout > 7*24*3600 {
		r.fail("task.toml", "verifier.timeout_sec is %v; 0 to 604800 are allowed", f.Verifier.Timeout)
	}
	t.Test.Timeout = time.Duration(f.Verifier.Timeout * float64(time.Second))
	for _, key := range []string{"difficulty", "category"} {
		if s, ok := f.Metadata[key].(string); ok {
			setMeta(t, key, s)
		}
	}
	folder, err := assets.AdoptFolder(safeID(r.Text("instance_id")), r.Folder)
	t.Grading.Folder = folder
	return t, err
}

// lastWorkdir is the working directory that a Dockerfile ends in; Docker's own default where it names none.
func lastWorkdir(dockerfile string) string {
	dir := "/"
	for line := range strings.Lines(dockerfile) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && strings.EqualFold(fields[0], "WORKDIR"):
			to := strings.Trim(fields[1], `"'`)
			if !strings.HasPrefix(to, "/") {
				to = dir + "/" + to
			}
			dir = cleanPath(to)
		case len(fields) > 1 && strings.EqualFold(fields[0], "FROM"):
			dir = "/"
		}
	}
	return dir
}
