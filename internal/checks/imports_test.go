package checks

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/milepost-rl/milepost"

// allowed is the import table of docs/design.md: a package (or the subtree below a name that ends in /...) may import
// those of Milepost named here, the root package, and anything below itself.
var allowed = map[string][]string{
	"":                   {},
	"credit/...":         {"credit"},
	"env/...":            {"env/..."},
	"rollout/...":        {"rollout/...", "env/...", "internal/vllm", "internal/messages"},
	"shadow/...":         {"shadow/...", "env/...", "internal/messages"},
	"internal/vllm/...":  {"internal/vllm/..."},
	"internal/messages":  {"env/..."},
	"internal/checks":    {},
	"internal/confdoc":   {},
	"internal/stats":     {},
	"internal/modeldir":  {},
	"internal/plan":      {"internal/modeldir"},
	"internal/launch":    {},
	"trainer_bridge/...": {"trainer_bridge/...", "internal/vllm"},
	"benchmarks/...":     {"benchmarks/...", "env/...", "rollout/...", "internal/stats", "orchestrator/journal"},
	"orchestrator/...":   {"orchestrator/...", "credit", "internal/vllm", "internal/stats"},
	"configs/...":        {"..."},
	"cmd/...":            {"..."},
}

func TestImportRules(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	n := 0
	for dec.More() {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		n++
		name := local(p.ImportPath)
		rule, ok := ruleFor(name)
		if !ok {
			t.Errorf("package %q has no import rule; add it to docs/design.md and to this table", name)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) || imp == module {
				continue
			}
			if !slices.ContainsFunc(rule, func(r string) bool { return matches(r, local(imp)) }) {
				t.Errorf("%s imports %s; allowed: the root package and %v", name, local(imp), rule)
			}
		}
	}
	if n < 10 {
		t.Fatalf("only %d packages were seen", n)
	}
}

func local(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

func ruleFor(name string) ([]string, bool) {
	for pattern, rule := range allowed {
		if matches(pattern, name) {
			return rule, true
		}
	}
	return nil, false
}

func matches(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == dir || strings.HasPrefix(name, dir+"/")
	}
	return pattern == name
}
