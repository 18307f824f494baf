package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/explain"
)

func TestReportOfAWholeRun(t *testing.T) {
	f := newRun(t, 12)
	if err := Write(f, ""); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Path("report.html"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		"tiny micro policy", "max_updates: 12 updates are done", "the interval lies above zero", "Validation rate", "Logprob gap to the sampler",
		"most ratios are clipped", "Update 1, resolved", "Update 12, resolved", "Update 1, unresolved", "tests.test_cart.Total.test_rate",
		"phi", "<span class=\"add\">&#43;    return sum", "the newest 2 checkpoints", "v12",
	} {
		if want == "phi" {
			want = "φ ver"
		}
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(text, "<script") {
		t.Error("an observation reached the page unescaped, or the page has a script")
	}
	if m := regexp.MustCompile(`(?:src|href)=|url\(|@import|https?://`).FindString(text); m != "" {
		t.Errorf("the page is not self-contained: %q", m)
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Error("the page holds a number that is none")
	}
	if strings.Contains(text, ">not measured<") {
		t.Error("a chart of a metric that the run records is empty")
	}
	checkSVG(t, text)
}

// checkSVG parses every chart as XML.
func checkSVG(t *testing.T, text string) {
	t.Helper()
	charts := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(charts) < 20 {
		t.Fatalf("%d charts", len(charts))
	}
	for i, c := range charts {
		dec := xml.NewDecoder(strings.NewReader(c))
		for {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("chart %d: %v", i, err)
			}
		}
	}
}

func TestSummary(t *testing.T) {
	f := newRun(t, 3)
	text, err := Summary(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^before    \d+\.\d % resolved on held-out \(95 % interval .*; 30 tasks, 120 attempts\)$`, `(?m)^after `, `(?m)^gain      [+-]\d`,
		`(?m)^updates   3 \(max_updates: 3 updates are done\)$`, `(?m)^time      59\.\d s$`, `(?m)^hidden    99\.\d % of verification time`,
		`(?m)^gap       2\.\d+e-7 `, `(?m)^warnings  \d+$`, `(?m)^report    .*report\.html$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the summary does not match %s:\n%s", want, text)
		}
	}
}

// TestReportOfARunThatJustBegan: a folder with nothing but run.json has a page too, and no folder has none.
func TestReportOfARunThatJustBegan(t *testing.T) {
	f, err := orchestrator.OpenFolder(t.TempDir(), orchestrator.Header{Name: "new", Seed: 1, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := d.Render(&buf); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"The run has not ended", "No evaluation on held-out tasks yet.", "No finished training batch yet.", "No push yet."} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if s := d.Summary("x"); !strings.Contains(s, "not evaluated") || !strings.Contains(s, "not measured") {
		t.Errorf("summary:\n%s", s)
	}
	if _, err := Load(&orchestrator.Folder{Dir: t.TempDir()}); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no run folder: %v", err)
	}
}

func TestDamageIsNamed(t *testing.T) {
	f := newRun(t, 1)
	for name, damage := range map[string]string{
		"evals/heldout-before.json": "{", "episodes/u0001.jsonl.zst": "no zstd", "config.yaml": "schedule: [", "run.json": "{", "journal.jsonl": "x\ny\n",
	} {
		whole, err := os.ReadFile(f.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Path(name), []byte(damage), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(f); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s damaged: %v", name, err)
		}
		if err := os.WriteFile(f.Path(name), whole, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSamplesAreExplained: the page shows an episode as `credit explain` does, and says what it rests on where the folder
// has no configuration, or why it shows none.
func TestSamplesAreExplained(t *testing.T) {
	f := newRun(t, 2)
	d, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := d.Render(&page); err != nil {
		t.Fatal(err)
	}
	if len(d.Samples) == 0 {
		t.Fatal("no sample")
	}
	for _, s := range d.Samples {
		want, err := explain.Load(f, s.Explained.ID)
		if err != nil || !reflect.DeepEqual(s.Explained, want) {
			t.Errorf("%s: the page explains\n%+v, the command\n%+v (error %v)", s.Explained.ID, s.Explained, want, err)
		}
		for _, fact := range append(want.Header(), want.Footer()...) {
			for _, l := range fact.Lines {
				if !strings.Contains(html.UnescapeString(page.String()), l) {
					t.Errorf("%s: the page lacks %s: %s", s.Explained.ID, fact.Label, l)
				}
			}
		}
		if len(want.Remarks) != 0 {
			t.Errorf("%s: the recorded credit is remarked upon: %q", want.ID, want.Remarks)
		}
	}
	for _, words := range []string{"<li>read shop/cart.py</li>", "kept by advantage: the largest"} {
		if !strings.Contains(page.String(), words) {
			t.Errorf("the page lacks %q", words)
		}
	}
	if err := os.Remove(f.Path("config.yaml")); err != nil {
		t.Fatal(err)
	}
	if d, err = Load(f); err != nil || !strings.Contains(strings.Join(d.Samples[0].Explained.Remarks, ""), "no saved configuration: the rules shown are the defaults") {
		t.Errorf("without a configuration: %+v, error %v", d.Samples[0].Explained.Remarks, err)
	}
	if err := os.Remove(f.Path("tasks.jsonl.zst")); err != nil {
		t.Fatal(err)
	}
	if d, err = Load(f); err != nil || len(d.Samples) != 0 || !strings.Contains(strings.Join(d.Missing, ""), "no tasks") {
		t.Errorf("without tasks: %d samples, %q, error %v", len(d.Samples), d.Missing, err)
	}
}
