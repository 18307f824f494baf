package dataset

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

// row is a classic row with some columns changed; a nil value takes a column away.
func row(id string, change map[string]any) map[string]any {
	r := map[string]any{"instance_id": id, "repo": "own/pkg", "base_commit": commit, "patch": patch, "test_patch": patch,
		"problem_statement": "two is wrong", "FAIL_TO_PASS": `["a"]`, "PASS_TO_PASS": []string{"b"}, "environment_setup_commit": commit}
	for k, v := range change {
		if r[k] = v; v == nil {
			delete(r, k)
		}
	}
	return r
}

func jsonl(t testing.TB, rows ...map[string]any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func tempFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// schema is that of classic rows with a list column and one of a struct.
var schema = arrow.NewSchema([]arrow.Field{
	{Name: "instance_id", Type: arrow.BinaryTypes.String}, {Name: "repo", Type: arrow.BinaryTypes.String},
	{Name: "base_commit", Type: arrow.BinaryTypes.String}, {Name: "patch", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "test_patch", Type: arrow.BinaryTypes.LargeString}, {Name: "problem_statement", Type: arrow.BinaryTypes.String},
	{Name: "FAIL_TO_PASS", Type: arrow.BinaryTypes.String}, {Name: "PASS_TO_PASS", Type: arrow.ListOf(arrow.BinaryTypes.String)},
	{Name: "environment_setup_commit", Type: arrow.BinaryTypes.String},
	{Name: "meta", Type: arrow.StructOf(arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64}, arrow.Field{Name: "f", Type: arrow.PrimitiveTypes.Float64})},
}, nil)

// parquetFile writes n rows, of which edit may change the strings.
func parquetFile(t testing.TB, n int, edit func(i int, column, value string) string) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &out, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(1000), parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	const each = 100
	for from := 0; from < n; from += each {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for i := from; i < min(from+each, n); i++ {
			r := row(fmt.Sprintf("own__pkg-%d", i), nil)
			for c, f := range schema.Fields() {
				v, _ := r[f.Name].(string)
				if edit != nil {
					v = edit(i, f.Name, v)
				}
				switch fb := b.Field(c).(type) {
				case *array.StringBuilder:
					fb.Append(v)
				case *array.LargeStringBuilder:
					fb.Append(v)
				case *array.ListBuilder:
					fb.Append(true)
					fb.ValueBuilder().(*array.StringBuilder).AppendValues([]string{"b", "c"}, nil)
				case *array.StructBuilder:
					fb.Append(true)
					fb.FieldBuilder(0).(*array.Int64Builder).Append(1 << 60)
					fb.FieldBuilder(1).(*array.Float64Builder).Append(.5)
				}
			}
		}
		if err := w.Write(b.NewRecordBatch()); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestContainers: one set of rows in each container gives the same tasks.
func TestContainers(t *testing.T) {
	rows := []map[string]any{row("own__pkg-0", nil), row("own__pkg-1", map[string]any{"hints_text": nil, "extra": 7})}
	lines := jsonl(t, rows...)
	list, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(lines)
	_ = z.Close()
	for name, data := range map[string][]byte{"a.jsonl": lines, "b.json": list, "c.jsonl.gz": zipped.Bytes(),
		"d.jsonl": append([]byte("\ufeff\n\n"), bytes.TrimRight(lines, "\n")...), "e.json": lines, "f.jsonl": bytes.ReplaceAll(lines, []byte("\n"), []byte("\r\n")),
		"g.parquet": parquetFile(t, 2, nil)} {
		tasks, _ := importTo(t, Options{From: tempFile(t, name, data)})
		if len(tasks) != 2 || tasks[1].ID != "own__pkg-1" || tasks[1].Origin.Row != 2 || tasks[1].Origin.Dataset != "swe-bench" || tasks[0].PassToPass[0] != "b" {
			t.Errorf("%s: %d tasks, %+v", name, len(tasks), tasks[len(tasks)-1].Origin)
		}
		if name == "a.jsonl" && tasks[1].Meta["extra"] != "7" {
			t.Errorf("an unknown column is not in the metadata: %v", tasks[1].Meta)
		}
	}
}

func TestSplitsAndFilters(t *testing.T) {
	dir := t.TempDir()
	for name, id := range map[string]string{"data/test-00000-of-00002.parquet": "", "data/dev-00000-of-00001-0123456789abcdef.parquet": "x"} {
		data := parquetFile(t, 3, func(_ int, c, v string) string {
			if c == "instance_id" {
				return v + id
			}
			return v
		})
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "dataset_infos.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, Options{From: dir}, milepost.KindInvalid, "holds splits dev, test; choose one with --split")
	fails(t, Options{From: dir, Split: "train"}, milepost.KindInvalid, `has no split "train"; its files name: dev, test`)
	tasks, _ := importTo(t, Options{From: dir, Split: "dev"})
	if len(tasks) != 3 || tasks[0].ID != "own__pkg-0x" || tasks[0].Meta["dataset_split"] != "dev" {
		t.Errorf("%d tasks, %v", len(tasks), tasks[0].Meta)
	}
	if tasks, _ := importTo(t, Options{From: dir, Split: "test", Limit: 2}); len(tasks) != 2 {
		t.Errorf("limit: %d tasks", len(tasks))
	}
	if tasks, _ := importTo(t, Options{From: dir, Split: "test", IDs: []string{"own__pkg-2"}}); len(tasks) != 1 || tasks[0].ID != "own__pkg-2" {
		t.Errorf("ids: %v", tasks)
	}
	fails(t, Options{From: dir, Split: "test", IDs: []string{"nope", "own__pkg-1"}}, milepost.KindNotFound, "has no instance nope")
}

// fails imports and holds the error's kind and text; nothing may be left behind.
func fails(t *testing.T, opts Options, kind milepost.Kind, want string) {
	t.Helper()
	opts.Out = filepath.Join(t.TempDir(), "set")
	_, err := Import(context.Background(), opts)
	if err == nil || milepost.KindOf(err) != kind || !strings.Contains(err.Error(), want) {
		t.Errorf("%v (%s); want %s and %q", err, milepost.KindOf(err), kind, want)
	}
	if left, _ := filepath.Glob(filepath.Join(opts.Out, "*.jsonl*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestBadInput: each fault is named with file, row, instance and column, and what is allowed.
func TestBadInput(t *testing.T) {
	good := row("own__pkg-1", nil)
	for name, c := range map[string]struct {
		rows []map[string]any
		want string
	}{
		"missing patch":    {[]map[string]any{good, row("own__pkg-2", map[string]any{"patch": nil})}, `rows.jsonl: row 2 (own__pkg-2): swe-bench wants column patch; there are`},
		"null patch":       {[]map[string]any{row("p-2", map[string]any{"patch": json.RawMessage("null")})}, `row 1 (p-2): column patch: missing or empty; a string is wanted`},
		"empty patch":      {[]map[string]any{row("p-2", map[string]any{"patch": " "})}, `row 1 (p-2): column patch: missing or empty`},
		"no diff":          {[]map[string]any{row("p-2", map[string]any{"patch": "change it"})}, `row 1 (p-2): column patch: no unified diff: it names no file (begins "change it")`},
		"path outside":     {[]map[string]any{row("p-2", map[string]any{"patch": strings.ReplaceAll(patch, "pkg/a.py", "../a.py")})}, `column patch: the diff names "../a.py", which is no path inside a repository`},
		"number":           {[]map[string]any{row("p-2", map[string]any{"problem_statement": 3})}, `row 1 (p-2): column problem_statement: a number where a string is wanted`},
		"unreadable list":  {[]map[string]any{row("p-2", map[string]any{"FAIL_TO_PASS": "a, b"})}, `row 1 (p-2): column FAIL_TO_PASS: unreadable list "a, b"`},
		"cut list":         {[]map[string]any{row("p-2", map[string]any{"PASS_TO_PASS": `["a", "b`})}, `row 1 (p-2): column PASS_TO_PASS: unreadable list`},
		"list of numbers":  {[]map[string]any{row("p-2", map[string]any{"PASS_TO_PASS": []int{1}})}, `column PASS_TO_PASS: element 1 is a number; strings are wanted`},
		"no tests":         {[]map[string]any{row("p-2", map[string]any{"FAIL_TO_PASS": "[]"})}, `column FAIL_TO_PASS: missing or empty; a list of at least one test is wanted`},
		"duplicate":        {[]map[string]any{good, row("own__pkg-2", nil), good}, `row 3 (own__pkg-1): column instance_id: "own__pkg-1" is also the id of row 1 of`},
		"no id":            {[]map[string]any{row("", nil)}, `row 1: column instance_id: missing or empty`},
		"bad commit":       {[]map[string]any{row("p-2", map[string]any{"base_commit": "HEAD"})}, `row 1 (p-2): task "p-2": field base_commit: "HEAD" is not 7 to 40 hex digits`},
		"no image's name":  {[]map[string]any{row("p-2", map[string]any{"image": "a b; true"})}, `row 1 (p-2): task "p-2": field image: "a b; true" is no name of an image`},
		"eval type":        {[]map[string]any{row("p-2", map[string]any{"eval_type": "maybe"})}, `column eval_type: "maybe" is not one of pass_and_fail, fail_only`},
		"no tests' patch":  {[]map[string]any{row("p-2", map[string]any{"test_patch": ""})}, `column test_patch: missing or empty, and there is no eval_script either`},
		"unknown form":     {[]map[string]any{{"question": "x", "answer": 1}}, `rows.jsonl: row 1: its form is not recognised; columns: answer, question. Nearest is`},
		"no string for id": {[]map[string]any{row("x", map[string]any{"instance_id": 5})}, `row 1: column instance_id: a number where a string is wanted`},
	} {
		t.Run(name, func(t *testing.T) {
			fails(t, Options{From: tempFile(t, "rows.jsonl", jsonl(t, c.rows...))}, milepost.KindInvalid, c.want)
		})
	}
}

// TestBadFiles: what is no file of rows at all, or breaks off in one.
func TestBadFiles(t *testing.T) {
	good := jsonl(t, row("own__pkg-1", nil))
	whole := parquetFile(t, 2500, nil)
	bad := bytes.Clone(whole)
	for i := len(bad) / 3; i < len(bad)/3+4000; i++ {
		bad[i] ^= 0x5a
	}
	notText := parquetFile(t, 3, func(i int, c, v string) string {
		if i == 1 && c == "problem_statement" {
			return "bad \xff byte"
		}
		return v
	})
	for name, c := range map[string]struct {
		file string
		data []byte
		kind milepost.Kind
		want string
	}{
		"cut Parquet":        {"a.parquet", whole[:len(whole)-100], milepost.KindCorrupt, "a.parquet: no whole Parquet file (cut off, or another format)"},
		"empty Parquet":      {"a.parquet", nil, milepost.KindCorrupt, "no whole Parquet file"},
		"damaged Parquet":    {"a.parquet", bad, milepost.KindCorrupt, "a.parquet: cannot be read behind row"},
		"Parquet not UTF-8":  {"a.parquet", notText, milepost.KindInvalid, "a.parquet: row 2 (own__pkg-1): column problem_statement: not UTF-8 at byte 4 of the value"},
		"JSON not UTF-8":     {"a.jsonl", bytes.Replace(good, []byte("two is"), []byte("two \xff"), 1), milepost.KindInvalid, "a.jsonl: row 1 (own__pkg-1): line 1: column problem_statement: not UTF-8 at byte 5"},
		"half a character":   {"a.jsonl", bytes.Replace(good, []byte("two is"), []byte(`two \udc80`), 1), milepost.KindInvalid, `a.jsonl: row 1 (own__pkg-1): line 1: column problem_statement: \udc80 at byte 5 of the value is half of a surrogate pair`},
		"cut JSON":           {"a.jsonl", append(bytes.Clone(good), good[:50]...), milepost.KindInvalid, "a.jsonl: row 2: line 2: not JSON: it ends too early"},
		"no JSON":            {"a.jsonl", []byte("instance_id,repo\n1,2\n"), milepost.KindInvalid, "row 1: line 1: not JSON"},
		"a list a line":      {"a.jsonl", append(bytes.Clone(good), "[1]\n"...), milepost.KindInvalid, "row 2: line 2: a row is a JSON object, this is a list"},
		"two rows a line":    {"a.jsonl", append(bytes.TrimSpace(bytes.Clone(good)), good...), milepost.KindInvalid, "something follows the row's JSON object"},
		"column twice":       {"a.jsonl", []byte(`{"instance_id": "x-1", "repo": "a", "repo": "b"}`), milepost.KindInvalid, "row 1 (x-1): line 1: column repo: twice in one row"},
		"cut array":          {"a.json", append([]byte("["), good...), milepost.KindInvalid, "row 2: the array does not end; the file is cut off"},
		"behind the array":   {"a.json", []byte("[" + string(good) + "] x"), milepost.KindInvalid, "something follows the array"},
		"nothing":            {"a.jsonl", nil, milepost.KindInvalid, "a.jsonl: holds no row"},
		"blank":              {"a.jsonl", []byte(" \n\n"), milepost.KindInvalid, "holds no row"},
		"damaged gzip":       {"a.jsonl.gz", []byte("nothing like it"), milepost.KindCorrupt, "a.jsonl.gz: gzip: invalid header"},
		"name of no data":    {"a.txt", good, milepost.KindInvalid, "a.txt: its name ends in none of .parquet, .jsonl"},
		"empty array":        {"a.json", []byte("[]"), milepost.KindInvalid, "gave no task"},
		"JSON without a row": {"a.json", []byte("7"), milepost.KindInvalid, "a row is a JSON object, this is a number"},
	} {
		t.Run(name, func(t *testing.T) {
			fails(t, Options{From: tempFile(t, c.file, c.data)}, c.kind, c.want)
		})
	}
	fails(t, Options{From: filepath.Join(t.TempDir(), "no.jsonl")}, milepost.KindNotFound, "no such file")
	fails(t, Options{From: t.TempDir()}, milepost.KindInvalid, "holds no data: files that end in")
	fails(t, Options{From: tempFile(t, "a.jsonl", good), Format: "swe"}, milepost.KindInvalid, `format "swe" is not one of swe-bench, swe-bench-lite`)
}

// TestHugeRows: a row of 100 MB is an error that names it, and is never in memory whole.
func TestHugeRows(t *testing.T) {
	const size = 100 << 20
	huge := strings.Repeat("x", size)
	line := jsonl(t, row("own__pkg-2", map[string]any{"problem_statement": huge}))
	good := jsonl(t, row("own__pkg-1", nil))
	lines := tempFile(t, "a.jsonl", slices.Concat(good, line, jsonl(t, row("own__pkg-3", nil))))
	huge = huge[:60<<20] // the others are only as large as they must be
	list := tempFile(t, "a.json", slices.Concat([]byte("["), good, []byte(","), line[:60<<20], []byte("\"}]")))
	pq := tempFile(t, "a.parquet", parquetFile(t, 2, func(i int, c, v string) string {
		if i == 1 && c == "problem_statement" {
			return huge
		}
		return v
	}))
	want := fmt.Sprintf("larger than %d MiB", MaxRow>>20)
	fails(t, Options{From: lines}, milepost.KindInvalid, "a.jsonl: row 2 (own__pkg-2): line 2: "+want)
	fails(t, Options{From: list}, milepost.KindInvalid, "a.json: row 2: "+want)
	fails(t, Options{From: pq}, milepost.KindInvalid, "a.parquet: row 2 (own__pkg-1): column problem_statement: "+want)
	line, huge = nil, ""
	tasks, sum := importTo(t, Options{From: lines, SkipInvalid: true})
	if len(tasks) != 2 || tasks[1].ID != "own__pkg-3" || tasks[1].Origin.Row != 3 || len(sum.Skipped) != 1 {
		t.Errorf("%d tasks, skipped %v", len(tasks), sum.Skipped)
	}
}

func TestSkipInvalid(t *testing.T) {
	in := tempFile(t, "rows.jsonl", jsonl(t, row("a-1", nil), row("a-2", map[string]any{"patch": ""}), row("a-1", nil), row("a-3", nil)))
	tasks, sum := importTo(t, Options{From: in, SkipInvalid: true})
	if len(tasks) != 2 || len(sum.Skipped) != 2 || !strings.Contains(sum.Skipped[0], "row 2 (a-2): column patch") || !strings.Contains(sum.Skipped[1], "row 3 (a-1)") {
		t.Errorf("%d tasks, %q", len(tasks), sum.Skipped)
	}
}

// TestFoldedTests: names that come twice are folded and counted, a test of both lists fails first.
func TestFoldedTests(t *testing.T) {
	in := tempFile(t, "rows.jsonl", jsonl(t, row("a-1", map[string]any{"FAIL_TO_PASS": []string{"x", "y", "x"}, "PASS_TO_PASS": []string{"y", "z"}})))
	tasks, sum := importTo(t, Options{From: in})
	k := tasks[0]
	if strings.Join(k.FailToPass, "") != "xy" || strings.Join(k.PassToPass, "") != "z" || k.Meta["tests_folded"] != "2" || sum.Folded != 1 {
		t.Errorf("%v, %v, %v", k.FailToPass, k.PassToPass, k.Meta)
	}
}

// TestMemoryIsFlat: ten times the rows do not take ten times the memory.
func TestMemoryIsFlat(t *testing.T) {
	peak := func(rows int) uint64 {
		name := tempFile(t, "a.parquet", parquetFile(t, rows, func(_ int, c, v string) string {
			if c == "problem_statement" {
				return v + strings.Repeat(" more", 2000)
			}
			return v
		}))
		var most uint64
		runtime.GC()
		_, err := Import(context.Background(), Options{From: name, Out: filepath.Join(t.TempDir(), "set"), Progress: func(n int) {
			if n%(rows/10) == 0 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return most
	}
	few, many := peak(150), peak(1500) // 1.5 and 15 MB
	t.Logf("live heap: %d KiB for 150 rows, %d KiB for 1,500", few>>10, many>>10)
	if many > few+6<<20 {
		t.Errorf("live heap grew from %d to %d KiB", few>>10, many>>10)
	}
}

// TestKeptRowsOfParquet: numbers of 64 bits, lists and structs come through as they were.
func TestKeptRowsOfParquet(t *testing.T) {
	out := filepath.Join(t.TempDir(), "set")
	importTo(t, Options{From: tempFile(t, "a.parquet", parquetFile(t, 1, nil)), Out: out})
	b, err := os.ReadFile(filepath.Join(out, benchmarks.RowsFile))
	if err != nil || !strings.Contains(string(b), `"meta":{"n":1152921504606846976,"f":0.5}`) || !strings.Contains(string(b), `"PASS_TO_PASS":["b","c"]`) {
		t.Errorf("%s (%v)", b, err)
	}
}
