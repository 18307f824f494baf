package ablation

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden tables")

// golden is hand with a third arm of which one run is under way, and with names that mark-up must not swallow.
func golden() Study {
	s := hand()
	s.Command = "milepost ablate study.yaml --dir out"
	s.Arms[0].About, s.Arms[0].Rate = "as shipped", 3e-5
	s.Arms[1].About, s.Arms[1].Settings, s.Arms[1].Rate = "outcome only", []string{"credit.w_ver=0", "credit.form=a|b"}, 2
	third := Arm{Name: "c <b>|x", About: "both off", Runs: slices.Clone(s.Arms[0].Runs)}
	third.Runs[1] = Run{Seed: 2, Points: third.Runs[1].Points[:1], Cost: Cost{Episodes: 8, Tokens: 100}}
	s.Arms = append(s.Arms, third)
	return s
}

func TestGoldenMarkdown(t *testing.T) {
	s := golden()
	var b bytes.Buffer
	if err := WriteMarkdown(&b, s, analyse(t, s)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "golden.md")
	if *rewrite {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the tables came out otherwise (-rewrite records):\n%s", b.String())
	}
	for line := range strings.Lines(b.String()) { // every row of a table has the columns of its head
		if strings.HasPrefix(line, "| ") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") < 7 {
			t.Errorf("row %q", line)
		}
	}
}

// TestWrite writes a whole study. To look at it with a browser, name a directory in MILEPOST_ABLATION_DIR.
func TestWrite(t *testing.T) {
	dir := os.Getenv("MILEPOST_ABLATION_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	s := usual()
	if err := Write(dir, s, analyse(t, s)); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"ablation.html", "ablation.md", "arms.csv", "comparisons.csv", "curves.csv", "runs.csv", "search.csv"}; !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	err = Write(filepath.Join(dir, "missing"), s, analyse(t, s))
	if milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("into a directory that is not there: %v", err)
	}
}

func TestPage(t *testing.T) {
	s := usual()
	s.Arms[1].Name = `outcome <script>alert("x")</script> & "only"`
	var b bytes.Buffer
	if err := WriteHTML(&b, s, analyse(t, s)); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"unfinished: 17 of 18 runs have ended", "What credit does", "smoothed by a centred moving mean over 5 updates", "from the lowest to the highest seed",
		"two-level bootstrap", "Holm", "milepost ablate study.yaml", "no verification (2 of 3 runs)", "credit.w_ver=0"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(text, "<script") {
		t.Error("the name of an arm reached the page unescaped")
	}
	if m := regexp.MustCompile(`(?:src|href)=|url\(|@import|https?://`).FindString(text); m != "" {
		t.Errorf("the page is not self-contained: %q", m)
	}
	if m := regexp.MustCompile(`NaN|Inf\b|%!`).FindString(text); m != "" {
		t.Errorf("the page holds %q", m)
	}
	charts := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(charts) != 3+2*5+2+3 { // overview, each arm beside the reference, forest plots, cost
		t.Errorf("%d figures", len(charts))
	}
	for i, c := range charts {
		dec := xml.NewDecoder(strings.NewReader(c))
		for {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("figure %d: %v", i, err)
			}
		}
	}
	if n := strings.Count(text, `class="band `); n != 2*2*5 {
		t.Errorf("%d bands", n)
	}
	for i := range s.Arms {
		if class := s.class(s.Arms[i].Name); !strings.Contains(text, "."+class+" { --c:") || !strings.Contains(text, `class="line `+class+`"`) {
			t.Errorf("arm %d: class %s has no colour or no line", i, class)
		}
	}
}

// TestDifferencesByHand: the axis of hand's one comparison goes from 0 to 50 points over 190 to 590 units.
func TestDifferencesByHand(t *testing.T) {
	s := hand()
	r := analyse(t, s)
	f := differences(s, r)
	for _, want := range []string{
		`<line class="limit" x1="190.0" x2="190.0" y1="4" y2="54.0"><title>no difference</title></line>`,
		`<line class="inner a0" x1="190.0" x2="590.0" y1="18.0" y2="18.0"/><circle class="dot a0" cx="390.0" cy="18.0" r="4.5"><title>b: +25.0 [0.0, +50.0], p 0.5</title>`,
		`<circle class="hollow a0" cx="190.0" cy="42.0" r="4.5"><title>b: 0.0 [0.0, 0.0], p 1</title>`,
	} {
		if !strings.Contains(string(f.SVG), want) {
			t.Errorf("the plot lacks %s\n%s", want, f.SVG)
		}
	}
	if !strings.Contains(f.Note, "Full dots: at 16 training episodes; hollow dots: at 2e-4 M sampled tokens") {
		t.Errorf("note %q", f.Note)
	}
}

// TestIntervalsOfFiguresStayOnTheAxis: a t interval of two seeds may be wider than the plot and is cut.
func TestIntervalsOfFiguresStayOnTheAxis(t *testing.T) {
	zero := 0.0
	f := forest{at: &zero, marks: []mark{{label: "a", class: "a0", value: .1, inner: Interval{.05, .15}, outer: &Interval{-3, 3}}}}
	lo, hi := f.span()
	near(t, "low end", lo, -.075, 1e-12) // 0 to .15, and half of that on either side
	near(t, "high end", hi, .225, 1e-12)
	for _, m := range regexp.MustCompile(` x[12]="([0-9.-]+)"`).FindAllStringSubmatch(string(f.svg()), -1) {
		if x, err := strconv.ParseFloat(m[1], 64); err != nil || x < forestL || x > forestW-forestR {
			t.Errorf("x %s (%v) lies beside the plot", m[1], err)
		}
	}
}

// readSheet reads a CSV file back: a map of columns for each row.
func readSheet(t *testing.T, path string) []map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, row := range all[1:] {
		m := map[string]string{}
		for i, name := range all[0] {
			if _, twice := m[name]; twice {
				t.Errorf("%s has column %s twice", path, name)
			}
			m[name] = row[i]
		}
		out = append(out, m)
	}
	return out
}

func exactly(t *testing.T, what, got string, want float64) {
	t.Helper()
	if v, err := strconv.ParseFloat(got, 64); err != nil || v != want {
		t.Errorf("%s is %q, want %v exactly", what, got, want)
	}
}

func TestCSVRoundTrip(t *testing.T) {
	s := usual()
	s.Arms[1].About = "a \"quoted\", text\nof two lines"
	r := analyse(t, s)
	dir := t.TempDir()
	if err := WriteCSV(dir, s, r); err != nil {
		t.Fatal(err)
	}
	arms := readSheet(t, filepath.Join(dir, "arms.csv"))
	for i, a := range r.Arms {
		row := arms[i]
		if row["arm"] != a.Name || row["about"] != s.Arms[i].About {
			t.Errorf("row %v", row)
		}
		exactly(t, "final", row["final"], a.Final.Value)
		exactly(t, "final_low", row["final_low"], a.Final.Bootstrap.Low)
		exactly(t, "gain_t_high", row["gain_t_high"], a.Gain.T.High)
		exactly(t, "at_tokens", row["at_tokens"], a.AtTokens.Value)
		exactly(t, "area_episodes_high", row["area_episodes_high"], a.AreaEpisodes.Bootstrap.High)
		exactly(t, "tokens_mean", row["tokens_mean"], a.Cost.Tokens)
	}
	comparisons := readSheet(t, filepath.Join(dir, "comparisons.csv"))
	if len(comparisons) != len(r.Comparisons) || len(comparisons) != 2*5 {
		t.Fatalf("%d comparisons", len(comparisons))
	}
	for i, c := range r.Comparisons {
		row := comparisons[i]
		if row["arm"] != c.Arm || row["basis"] != string(c.Basis) || row["verdict"] != string(c.Verdict) || row["correction"] != "holm" {
			t.Errorf("row %v", row)
		}
		exactly(t, "difference", row["difference"], c.Difference.Value)
		exactly(t, "difference_high", row["difference_high"], c.Difference.Bootstrap.High)
		exactly(t, "p_corrected", row["p_corrected"], c.Corrected)
		exactly(t, "p_t", row["p_t"], *c.PT)
		exactly(t, "p_t_corrected", row["p_t_corrected"], *c.CorrectedT)
	}
}

func TestCSVOfRuns(t *testing.T) {
	s := usual()
	dir := t.TempDir()
	if err := WriteCSV(dir, s, analyse(t, s)); err != nil {
		t.Fatal(err)
	}
	runs, curves := readSheet(t, filepath.Join(dir, "runs.csv")), readSheet(t, filepath.Join(dir, "curves.csv"))
	i := 0
	for k, a := range s.Arms {
		for j, run := range a.Runs {
			if row := runs[3*k+j]; row["finished"] != strconv.FormatBool(run.Finished) || row["dir"] != run.Dir || (row["final"] == "") != (run.Final == nil) {
				t.Errorf("row %v", row)
			}
			for _, p := range run.Points {
				exactly(t, "train", curves[i]["train"], p.Train)
				exactly(t, "edited_rate", curves[i]["edited_rate"], *p.EditedRate)
				if (curves[i]["heldout"] == "") != (p.Heldout == nil) {
					t.Errorf("row %v", curves[i])
				}
				i++
			}
		}
	}
	if search := readSheet(t, filepath.Join(dir, "search.csv")); len(search) != 18 || search[1]["chosen"] != "true" || search[0]["chosen"] != "false" {
		t.Errorf("search: %v", search)
	}
	if i != len(curves) || len(runs) != 18 {
		t.Errorf("%d points, %d runs", len(curves), len(runs))
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		points(.0321): "+3.2", points(-.0321): "−3.2", points(.0004): "0.0", points(-.0004): "0.0", percent(.4167): "41.7", hours(5400): "1:30", hours(29.9): "0:00",
		hours(3599): "1:00", millions(1234567): "1.23", rateSpan(&Interval{-.2, 1.3}): "[0.0, 100.0]", rateSpan(nil): "–", learningRate(3e-5): "3e-05", learningRate(0): "–", probability(nil): "–", clip("abcdef", 6): "abcdef", clip("äbcdefg", 6): "äbcde…",
		span(&Interval{-.1, .1}): "[−10.0, +10.0]",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for n, want := range map[int]string{1: "no seed level", 2: "it has 4 distinct resamples", 3: "it has 27 distinct resamples", 6: "at least 6 seeds"} {
		if got := (Result{Comparisons: []Comparison{{Difference: Estimate{Seeds: make([]int64, n)}}}}).seedNote(); !strings.Contains(got, want) {
			t.Errorf("%d seeds: %q", n, got)
		}
	}
}
