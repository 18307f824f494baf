package configs_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
)

func TestOverrides(t *testing.T) {
	c, err := configs.Load("quickstart", []string{
		"run.seed=4", "run.seed=5", "run.name=7", "run.dir=~/runs/x y", "tasks.validation=", "rollout.wall=1h30m",
		"server.urls=[http://a:1, http://b:2]", "server.env={A_B: 1, C: x}", "credit.eps=1e-5", "credit.milestone.w_ver=null",
		"micro={demos: 3}", `rollout.task_prompt="Fix: {statement}\n# now"`, "rft.model.added_tokens=[]",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ what, got, want any }{
		{"run.seed", c.Run.Seed, int64(5)},
		{"run.name", c.Run.Name, "7"},
		{"run.dir", c.Run.Dir, "~/runs/x y"},
		{"tasks.validation", c.Tasks.Validation, ""},
		{"rollout.wall", c.Rollout.Wall, 90 * time.Minute},
		{"server.urls", c.Server.URLs, []string{"http://a:1", "http://b:2"}},
		{"server.env", c.Server.Env, map[string]string{"A_B": "1", "C": "x"}},
		{"credit.eps", c.Credit.Eps, 1e-5},
		{"credit.milestone.w_ver", c.Credit.Milestone.WVer, (*float64)(nil)},
		{"micro.demos", c.Micro.Demos, 3},
		{"rollout.task_prompt", c.Rollout.TaskPrompt, "Fix: {statement}\n# now"},
		{"rft.model.added_tokens", len(c.RFT.Model.AddedTokens), 0},
	} {
		if !reflect.DeepEqual(x.got, x.want) {
			t.Errorf("%s is %#v, want %#v", x.what, x.got, x.want)
		}
	}
	plain, err := configs.Load("quickstart", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Micro.Train != plain.Micro.Train || c.Rollout.MaxTurns != plain.Rollout.MaxTurns {
		t.Error("an override changes its neighbours")
	}
}

func TestBadOverrides(t *testing.T) {
	const form = ": want section.field=value"
	for o, want := range map[string]string{
		"run.seed":           "configs: override: --set run.seed" + form,
		"=3":                 "--set =3" + form,
		"":                   "--set " + form,
		"run..seed=3":        "--set run..seed=3" + form,
		".seed=3":            "--set .seed=3" + form,
		"run .seed=3":        "--set run .seed=3" + form,
		"run: {seed: 1}":     "--set run: {seed: 1}" + form,
		"run.sed=3":          "configs: parse: --set run.sed=3: run.sed: unknown field; allowed: name, dir, seed",
		"nope=3":             "--set nope=3: nope: unknown field; allowed: extends, run, tasks,",
		"run.seed.x=3":       "--set run.seed.x=3: run.seed is a mapping; allowed: a whole number",
		"run=5":              "--set run=5: run is 5; allowed: a mapping of name, dir, seed",
		"run.seed=":          `--set run.seed=: run.seed is ""; allowed: a whole number`,
		"run.seed=3=4":       `--set run.seed=3=4: run.seed is "3=4"; allowed: a whole number`,
		"rollout.wall=7":     "--set rollout.wall=7: rollout.wall is 7; allowed: a duration such as 90s, 2m or 1h30m",
		"run.name=a # b":     "--set run.name=a # b: # would begin a comment; put the value in quotes",
		"run.name=a\nb: 3":   "--set run.name: the value has several lines; allowed: one",
		"run.name=a: b":      "--set run.name=a: b: mapping value is not allowed in this context",
		"server.urls=[a":     "--set server.urls=[a: sequence end token ']' not found",
		"schedule.barrier=0": "--set schedule.barrier=0: schedule.barrier is 0; allowed: a duration",
		"policy.pool.retries=-1": "configs: validate: --set policy.pool.retries=-1: policy.pool.retries: policy.pool: " +
			"policy: pool configuration: retries is -1; it must be at least 0",
		"server.env.A=b":      "configs: override: --set server.env.A=b: server.env is set as a whole, for example --set 'server.env={KEY: value}'",
		"schedule.barrier=0s": "--set schedule.barrier=0s: schedule.barrier: schedule: orchestrator: schedule: ",
	} {
		_, err := configs.Load("quickstart", []string{o})
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %q: error\n%v\nwant\n%s", o, err, want)
		}
	}
}
