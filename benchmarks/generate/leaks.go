package generate

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

//go:embed leaks.py
var leaksProgram string

// minCopy is the size in bytes from which a file with the content of a module is one: empty ones are all alike.
const minCopy = 100

// scanTimeout bounds the search of the environment.
const scanTimeout = 10 * time.Minute

// searchEnvironment runs leaks.py where the agent and the tests run, in the emptied tree, and returns what it finds.
func searchEnvironment(ctx context.Context, cfg Config, p *parts, t *milepost.Task, check *benchmarks.Checker) ([]string, error) {
	const op = "generate: search the environment"
	name, _, _ := strings.Cut(cfg.Package, "==")
	hashes := map[string][]string{}
	for _, f := range p.code {
		if len(f.Data) >= minCopy {
			sum := sha256.Sum256(f.Data)
			size := strconv.Itoa(len(f.Data))
			hashes[size] = append(hashes[size], hex.EncodeToString(sum[:]))
		}
	}
	request, err := json.Marshal(map[string]any{"name": name, "modules": p.tops(), "hashes": hashes})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInternal, err)
	}
	search := *t
	search.Tests = []string{"search::none"}
	search.Test.Argv, search.Test.Timeout = []string{"python3", ".milepost-search/leaks.py"}, scanTimeout
	search.Test.Hidden = map[string]string{".milepost-search/leaks.py": leaksProgram, ".milepost-search/leaks.json": string(request)}
	out, err := check.Runner.Run(ctx, &search, t.BaseTree, nil)
	if err != nil {
		return nil, err
	}
	var found []string
	done := false
	for line := range strings.Lines(string(out.Log)) {
		line = strings.TrimSpace(line)
		if what, ok := strings.CutPrefix(line, "LEAK "); ok {
			found = append(found, what)
		}
		done = done || strings.HasPrefix(line, "SCANNED ")
	}
	if !done {
		return nil, milepost.E(op, milepost.KindInvalid, "the search did not come to its end (%s): %.1000s", out.Status, out.Log)
	}
	return found, nil
}

// told finds bodies in what the agent sees: the statement, and files that stay.
func told(s *specification, p *parts) string {
	if w := s.tells(s.text); w != "" {
		return "the specification holds lines of a body: " + strconv.Quote(w)
	}
	for _, f := range p.stays {
		if w := s.tells(string(f.Data)); w != "" {
			return f.Path + " holds lines of a body: " + strconv.Quote(w)
		}
	}
	return ""
}
