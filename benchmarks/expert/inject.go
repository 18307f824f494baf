package expert

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

// injectScript plays tasks with a reference patch and few changed lines.
func injectScript(cfg Config, task *milepost.Task) (script, error) {
	if task == nil || task.ReferencePatch == "" {
		return nil, milepost.E("expert: open", milepost.KindInvalid,
			"no line of the statement reads as a micro task's, and the opening has no task with a reference patch")
	}
	edits, err := benchmarks.Edits(task.ReferencePatch)
	if err != nil {
		return nil, milepost.E("expert: open", milepost.KindInvalid, "task %s: reference_patch: %w", task.ID, err)
	}
	return func(p *player) error {
		p.rng.Shuffle(len(edits), func(i, j int) { edits[i], edits[j] = edits[j], edits[i] })
		for _, e := range edits {
			cfg.repairKnown(p, task.Statement, e)
		}
		return nil
	}, nil
}

var testName = regexp.MustCompile(`::test_(\w+)`)

// repairKnown plays one changed place.
func (cfg Config) repairKnown(p *player, statement string, e benchmarks.Edit) {
	if names := testName.FindAllStringSubmatch(statement, -1); len(names) > 0 && p.chance(cfg.Search) {
		p.do("search", searchArgs{"symbol", names[p.rng.IntN(len(names))][1]})
	}
	last := e.Line + strings.Count(e.Old, "\n") - 1
	p.do("read_file", readArgs{Path: e.Path, Start: max(1, e.Line-cfg.Around), End: max(last, e.Line) + cfg.Around})
	write := e.New
	if !p.chance(cfg.Right) {
		write = vary(p.rng, e)
	}
	if !p.chance(cfg.Skip) {
		p.replace(e.Path, strings.TrimSuffix(e.Old, "\n"), strings.TrimSuffix(write, "\n"))
	}
}

// variations rewrite one place of a line of Python into something that looks as sensible and is not the same.
var variations = []struct {
	at  *regexp.Regexp
	new []string // one is drawn; nil changes a number
}{
	{regexp.MustCompile(`==`), []string{"!=", "is"}},
	{regexp.MustCompile(`!=`), []string{"=="}},
	{regexp.MustCompile(` (?:<=?|>=?) `), []string{" < ", " <= ", " > ", " >= "}},
	{regexp.MustCompile(` [-+*] `), []string{" + ", " - ", " * "}},
	{regexp.MustCompile(` (?://|%|/) `), []string{" // ", " % ", " / "}},
	{regexp.MustCompile(` (?:and|or) `), []string{" and ", " or "}},
	{regexp.MustCompile(`\bnot `), []string{""}},
	{regexp.MustCompile(`\bif `), []string{"if not "}},
	{regexp.MustCompile(`\b(?:True|False|None)\b`), []string{"True", "False", "None"}},
	{regexp.MustCompile(`\b\d+\b`), nil},
	{regexp.MustCompile(`\breturn .*`), []string{"return None"}},
	{regexp.MustCompile(`\bif .*:`), []string{"if True:", "if False:"}},
	{regexp.MustCompile(` = [^=].*`), []string{" = None"}},
	{regexp.MustCompile(`\(\w+, \w+`), []string{"("}},
}

// vary draws a wrong variation: other text than the reference's and than what is there.
func vary(rng *rand.Rand, e benchmarks.Edit) string {
	var all []string
	for _, v := range variations {
		for _, m := range v.at.FindAllStringIndex(e.New, -1) {
			was := e.New[m[0]:m[1]]
			for _, to := range replacements(v.new, was) {
				text := e.New[:m[0]] + to + e.New[m[1]:]
				if text != e.New && text != e.Old && !slices.Contains(all, text) {
					all = append(all, text)
				}
			}
		}
	}
	if len(all) == 0 { // nothing to vary: the place is emptied
		body := strings.TrimLeft(e.New, " \t")
		return e.New[:len(e.New)-len(body)] + "pass\n"
	}
	return all[rng.IntN(len(all))]
}

// replacements are what may stand in the place of a match: the listed words, or numbers beside a number; for a pair of
// names, the pair the other way round.
func replacements(words []string, was string) []string {
	if words == nil {
		n, err := strconv.Atoi(was)
		if err != nil {
			return nil
		}
		return []string{strconv.Itoa(n + 1), strconv.Itoa(n + 2), strconv.Itoa(max(n-1, 0))}
	}
	if a, b, ok := strings.Cut(strings.TrimPrefix(was, "("), ", "); ok && words[0] == "(" {
		return []string{"(" + b + ", " + a}
	}
	return words
}
