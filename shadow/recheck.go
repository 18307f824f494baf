package shadow

import (
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Flaky tests are found by testing a sample of the states twice. Whenever a probe has come back trusted, its state is
// drawn for the sample by its key (a share ProberConfig.Recheck of all keys, the same ones in every start of the run), and
// published once more behind everything else. What the second run gives is compared and never used: the first result
// stands for everybody who asked for the state, before and after, so that all episodes of a group are judged by the same
// report, and so that no probe's trust depends on whether it was drawn. What differs is counted, and kept by name.

// kindRecheck is the queue of second runs; no request has it.
const kindRecheck milepost.ProbeKind = "recheck"

// recheckSuffix makes the key of a second run, which is never that of a result.
const recheckSuffix = "+recheck"

// maxRechecks is the most second runs under way at once: workers that never get to them must not pile them up.
const maxRechecks = 64

// drawn reports whether a key, a SHA-256 in hex, is in a sample of the given share.
func drawn(key string, share float64) bool {
	n, err := strconv.ParseUint(key[:min(13, len(key))], 16, 64)
	return err == nil && float64(n) < share*(1<<52)
}

// recheck asks for a second run of the state of f, which has just come back trusted; nil where it is not drawn.
func (b *book) recheck(f *flight) *flight {
	if f.recheck || b.rechecks >= maxRechecks || !drawn(f.key, b.recheckShare) {
		return nil
	}
	key := f.key + recheckSuffix
	if b.flights[key] != nil {
		return nil
	}
	g := &flight{key: key, req: f.req, print: f.print, attempt: b.spent[key].attempt + 1, recheck: true}
	g.req.Kind = kindRecheck
	b.flights[key] = g
	b.rechecks++
	return g
}

// compare ends a second run: p is what it gave.
func (b *book) compare(f *flight, p *milepost.Probe) *disagreement {
	b.rechecks--
	first, ok := b.results[strings.TrimSuffix(f.key, recheckSuffix)]
	if !p.Trusted || !ok {
		b.stats.RecheckFailed++
		return nil
	}
	b.stats.Rechecked++
	d := &disagreement{V: fileVersion, Task: f.print.task.ID, Tree: f.req.Tree, Workers: [2]string{first.Worker, p.Worker}}
	for i, s := range first.Report {
		if i < len(p.Report) && p.Report[i] != s {
			d.Tests = append(d.Tests, testPair{f.print.task.Tests[i], s.String(), p.Report[i].String()})
		}
	}
	if len(d.Tests) == 0 {
		return nil
	}
	b.stats.Disagreed++
	b.note(d)
	return d
}

// disagreement is one state whose two runs differ.
type disagreement struct {
	V       int        `json:"v"`
	Task    string     `json:"task"`
	Tree    string     `json:"tree"`
	Tests   []testPair `json:"tests"`
	Workers [2]string  `json:"workers"` // of the first and the second run
}

type testPair struct {
	Test   string `json:"test"`
	First  string `json:"first"`
	Second string `json:"second"`
}

// FlakyTest is a test that gave two answers on one state, at least once.
type FlakyTest struct {
	Task   string `json:"task"`
	Test   string `json:"test"`
	States int    `json:"states"` // states on which its two runs differed
}

func (b *book) note(d *disagreement) {
	for _, t := range d.Tests {
		b.flaky[[2]string{d.Task, t.Test}]++
	}
}

func (b *book) flakyTests() []FlakyTest {
	out := make([]FlakyTest, 0, len(b.flaky))
	for k, n := range b.flaky {
		out = append(out, FlakyTest{k[0], k[1], n})
	}
	slices.SortFunc(out, func(x, y FlakyTest) int {
		if c := strings.Compare(x.Task, y.Task); c != 0 {
			return c
		}
		return strings.Compare(x.Test, y.Test)
	})
	return out
}

// flakyFile keeps every disagreement of the run, over all its starts.
type flakyFile struct{ lineFile }

// openFlaky reads the file at path, which may be missing, into b and opens it for appending; bad counts lines that do not
// parse, which are passed over. Errors: KindUnavailable.
func openFlaky(path string, b *book) (f *flakyFile, bad int, err error) {
	f = &flakyFile{}
	err = f.open(path, func(r io.Reader) (int64, error) {
		return readLines(r, func(line []byte) {
			var d disagreement
			if json.Unmarshal(line, &d) != nil || d.V != fileVersion || d.Task == "" {
				bad++
				return
			}
			b.note(&d)
		})
	})
	return f, bad, milepost.Wrap("shadow: open flaky tests", milepost.KindUnavailable, err)
}

func (f *flakyFile) add(d *disagreement) error {
	return milepost.Wrap("shadow: write flaky tests", milepost.KindUnavailable, f.append(d))
}

// Flaky lists the tests that gave two answers on one state in this run, earlier starts included where a FlakyFile keeps
// them; by task and test.
func (p *Prober) Flaky() []FlakyTest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.book.flakyTests()
}
