package evaluate

import (
	"reflect"
	"testing"

	"github.com/milepost-rl/milepost/rollout"
)

// TestScaffoldOfASavedConfiguration: what YAML turns from nil into empty is the same scaffold; another setting is not.
func TestScaffoldOfASavedConfiguration(t *testing.T) {
	of := func(change func(*rollout.Config)) Scaffold {
		c := rollout.Default()
		change(&c)
		s, err := ScaffoldOf(c, false, "local")
		must(t, err)
		return s
	}
	plain := of(func(*rollout.Config) {})
	if saved := of(func(c *rollout.Config) { c.Tools.Descriptions, c.Tools.Names = map[string]string{}, []string{} }); !reflect.DeepEqual(saved, plain) {
		t.Errorf("saved %+v, given %+v", saved, plain)
	}
	if other := of(func(c *rollout.Config) { c.Temperature, c.MaxTurns = .1, 3 }); !reflect.DeepEqual(other, plain) {
		t.Errorf("decoding parameters are in the scaffold: %+v", other)
	}
	for name, change := range map[string]func(*rollout.Config){
		"tools":  func(c *rollout.Config) { c.Tools.ReadLines++ },
		"prompt": func(c *rollout.Config) { c.TaskPrompt = "Do: {statement}" },
		"writes": func(c *rollout.Config) { c.BashWrites = rollout.BashWritesForbid },
	} {
		if other := of(change); other.Fingerprint == plain.Fingerprint || name == "prompt" && other.Prompt == plain.Prompt {
			t.Errorf("%s: another setting, the same scaffold", name)
		}
	}
}

func TestFingerprintIsOfContent(t *testing.T) {
	tasks := tasksOf(3)
	a, each, err := Fingerprint(tasks)
	must(t, err)
	moved := tasksOf(3)
	for _, task := range moved {
		task.Repo, task.Weight = "/elsewhere/"+task.ID, 2
	}
	moved[0], moved[2] = moved[2], moved[0]
	if b, _, err := Fingerprint(moved); err != nil || b != a || len(each) != 3 {
		t.Errorf("moved, another order: %s, %v; want %s", b, err, a)
	}
	moved[1].PassToPass = moved[1].PassToPass[:1]
	if b, _, err := Fingerprint(moved); err != nil || b == a {
		t.Errorf("another task: %s, %v", b, err)
	}
}
