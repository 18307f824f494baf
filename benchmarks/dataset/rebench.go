package dataset

import (
	milepost "github.com/milepost-rl/milepost"
)

var sweRebench = &Format{
	Name:   "swe-rebench",
	About:  "SWE-rebench: Python issues collected by a pipeline; the rows of split filtered have images",
	Source: "nebius/SWE-rebench on the hub",
	Needs:  append([]string{"install_config", "docker_image|image_name"}, classicNeeds...),
	Match: func(r *Row) int {
		if r.Has("language") {
			return 0
		}
		return 5
	},
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) {
		t := repair(r, r.MustText("problem_statement"), testbed)
		t.Image = r.MustText("docker_image", "image_name")
		t.Grading = &milepost.Grading{Rule: milepost.GradeStates}
		setTestPatch(r, t, "test_patch")
		if c := r.Object("install_config"); c != nil {
			t.Grading.Setup = append(c.Commands("pre_install"), c.Commands("install")...)
			t.Grading.Commands = c.Commands("test_cmd")
			t.Grading.LogParser = c.Text("log_parser")
			r.within("install_config", c)
		}
		if len(t.Grading.Commands) == 0 {
			r.fail("install_config", "test_cmd: missing or empty; a command is wanted")
		}
		keep(r, t, "version", "created_at", "environment_setup_commit", "license_name")
		return t, nil
	},
}
