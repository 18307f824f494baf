package evaluate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// Identity is what a result is a result of. It is stated in every result, and a resumed evaluation must have the same,
// but for what is marked as stated only.
type Identity struct {
	Model    string   `json:"model"`              // name of the model, the folder of its weights, or of the script
	Endpoint string   `json:"endpoint,omitempty"` // where it was served; stated only
	Milepost string   `json:"milepost"`           // version of this program; stated only
	Seed     int64    `json:"seed"`
	Select   string   `json:"select,omitempty"` // rule of selection among attempts
	Dataset  Dataset  `json:"dataset"`
	Sampling Sampling `json:"sampling"`
	Scaffold Scaffold `json:"scaffold"`
}

// Dataset names the task set.
type Dataset struct {
	Source      string `json:"source"` // as it was given; stated only
	Tasks       int    `json:"tasks"`
	Fingerprint string `json:"fingerprint"` // see Fingerprint
}

// Sampling are the decoding parameters and the limits of an attempt.
type Sampling struct {
	Temperature   float64 `json:"temperature"`
	TopP          float64 `json:"top_p"`
	MaxTurnTokens int     `json:"max_turn_tokens"`
	MaxTokens     int     `json:"max_tokens"`  // sampled, of an attempt; 0 = no bound
	MaxContext    int     `json:"max_context"` // 0 = what the model can
	MaxTurns      int     `json:"max_turns"`
	Wall          string  `json:"wall"`
}

// Scaffold is what the model works in.
type Scaffold struct {
	Name        string   `json:"name"`
	Tools       []string `json:"tools"`
	ToolFormat  string   `json:"tool_format"` // of calls in text; "native" where calls are API fields
	BashWrites  string   `json:"bash_writes"` // forbid or capture
	Prompt      string   `json:"prompt"`      // hash of the opening prompt, but for what the task says
	Fingerprint string   `json:"fingerprint"` // hash of the whole section rollout, but for what Sampling states
	Driver      string   `json:"driver"`      // of sandboxes; stated only
}

// statedOnly are the fields that may change from one session to the next.
var statedOnly = []string{"endpoint", "milepost", "dataset.source", "scaffold.driver"}

// Differences lists the fields in which two identities differ, as "field: a, now b", sorted; those that are stated only
// are left out.
func Differences(a, b Identity) []string {
	was, is := flatten(a), flatten(b)
	var out []string
	for _, k := range slices.Sorted(maps.Keys(is)) {
		if was[k] != is[k] && !slices.Contains(statedOnly, k) {
			out = append(out, fmt.Sprintf("%s: %s, now %s", k, was[k], is[k]))
		}
	}
	return out
}

func sentence(differences []string) string { return strings.Join(differences, "; ") }

// flatten turns an identity into its leaves, by dotted path, as JSON.
func flatten(id Identity) map[string]string {
	out := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if m, ok := v.(map[string]any); ok {
			for k, e := range m {
				walk(strings.TrimPrefix(path+"."+k, "."), e)
			}
			return
		}
		b, _ := json.Marshal(v) // it was unmarshalled from JSON
		out[path] = string(b)
	}
	var tree any
	b, err := json.Marshal(id)
	if err == nil {
		err = json.Unmarshal(b, &tree)
	}
	if err != nil {
		panic(fmt.Sprintf("an Identity does not marshal: %v", err))
	}
	if _, ok := tree.(map[string]any)["select"]; !ok {
		tree.(map[string]any)["select"] = ""
	}
	walk("", tree)
	return out
}

// SamplingOf states a configuration's decoding parameters.
func SamplingOf(c rollout.Config) Sampling {
	return Sampling{Temperature: c.Temperature, TopP: c.TopP, MaxTurnTokens: c.MaxTurnTokens, MaxTokens: c.MaxTokens,
		MaxContext: c.MaxContext, MaxTurns: c.MaxTurns, Wall: c.Wall.String()}
}

// ScaffoldOf states a configuration's scaffold; native says that calls are fields of the endpoint's API.
func ScaffoldOf(c rollout.Config, native bool, driver string) (Scaffold, error) {
	s := Scaffold{Name: c.Scaffold, Tools: c.Tools.Names, ToolFormat: c.ToolFormat, BashWrites: c.BashWrites, Driver: driver}
	if len(s.Tools) == 0 {
		s.Tools = tools.Names(c.Scaffold)
	}
	if native {
		s.ToolFormat = "native"
	}
	var err error
	if s.Prompt, err = hash(c.Messages(&milepost.Task{Statement: "statement", Protected: []string{"protected"}}, "/workspace")); err != nil {
		return s, err
	}
	c.Temperature, c.TopP, c.MaxTurnTokens, c.MaxTokens, c.MaxContext, c.MaxTurns, c.Wall = 0, 0, 0, 0, 0, 0, 0
	c.ProbeSteps = false // an evaluation probes none
	s.Fingerprint, err = hash(c)
	return s, err
}

// Fingerprint is the hash of a task set: of every task's content, in the order of their ids, wherever files and
// repositories lie on this machine. Tasks are hashed alone too, by id.
func Fingerprint(tasks []*milepost.Task) (set string, each map[string]string, err error) {
	each = make(map[string]string, len(tasks))
	for _, t := range tasks {
		c := *t
		c.Repo, c.Weight = "", 0
		if t.Origin != nil {
			origin := *t.Origin
			origin.File = ""
			c.Origin = &origin
		}
		if t.Grading != nil {
			grading := *t.Grading
			grading.Folder = filepath.Base(grading.Folder)
			c.Grading = &grading
		}
		if each[t.ID], err = hash(&c); err != nil {
			return "", nil, err
		}
	}
	set, err = hash(each) // keys of a map are sorted in JSON
	return set, each, err
}

// hash is the first 16 hex digits of the SHA-256 of v as JSON. What is null or empty counts as absent: a saved
// configuration comes back with empty lists where there were none.
func hash(v any) (string, error) {
	const op = "evaluate: hash"
	b, err := json.Marshal(v)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInternal, err)
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return "", milepost.Wrap(op, milepost.KindInternal, err)
	}
	if b, err = json.Marshal(pruned(tree)); err != nil {
		return "", milepost.Wrap(op, milepost.KindInternal, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// pruned is a JSON value without fields that are null or empty; nil where nothing is left of it. Elements of lists stay.
func pruned(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if v[k] = pruned(e); v[k] == nil {
				delete(v, k)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = pruned(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	}
	return v
}
