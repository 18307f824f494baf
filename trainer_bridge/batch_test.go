package trainerbridge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
	"pgregory.net/rapid"
)

func TestSchemaIsThatOfTheText(t *testing.T) {
	text, err := os.ReadFile("proto/batch.schema")
	if err != nil {
		t.Fatal(err)
	}
	names := map[arrow.Type]string{arrow.STRING: "utf8", arrow.INT32: "int32", arrow.FLOAT32: "float32", arrow.BOOL: "bool", arrow.LARGE_BINARY: "large_binary"}
	var want, got []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			want = append(want, line)
		}
	}
	optional, fields := map[string]bool{}, append(valueFields[:len(valueFields):len(valueFields)], routesField)
	for _, f := range fields {
		optional[f.Name] = true
	}
	for _, f := range append(batchSchema.Fields(), fields...) {
		word := names[f.Type.ID()]
		if l, ok := f.Type.(*arrow.ListType); ok {
			word = "list<" + names[l.Elem().ID()] + ">"
		}
		if optional[f.Name] {
			word += " optional"
		}
		got = append(got, f.Name+": "+word)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("schema\n%v\nwant\n%v", got, want)
	}
}

func TestHashIsThatOfTheTexts(t *testing.T) {
	h := sha256.New()
	for _, name := range []string{"proto/trainer.proto", "proto/batch.schema"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(data)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != trainerpb.SchemaHash {
		t.Errorf("hash %s, generated code has %s; run generate.sh", got, trainerpb.SchemaHash)
	}
}

func drawRow(t *rapid.T, label string, valued bool, routes *milepost.Routes) Row {
	n := rapid.IntRange(1, 30).Draw(t, label+" length")
	r := Row{Episode: label, Tokens: make([]int32, n), Logprobs: make([]float32, n), Versions: make([]int32, n), Mask: make([]bool, n), Advantages: make([]float32, n)}
	for k := range n {
		r.Tokens[k] = rapid.Int32Range(0, 1000).Draw(t, "token")
		r.Versions[k] = -1
		if k > 0 && rapid.Bool().Draw(t, "trained") {
			r.Versions[k], r.Mask[k] = rapid.Int32Range(0, 9).Draw(t, "version"), true
			r.Logprobs[k] = rapid.Float32Range(-30, 0).Draw(t, "logprob")
			r.Advantages[k] = rapid.Float32Range(-5, 5).Draw(t, "advantage")
		}
		if valued {
			r.Values = append(r.Values, rapid.Float32Range(-5, 5).Draw(t, "value"))
			r.Returns = append(r.Returns, rapid.Float32Range(-5, 5).Draw(t, "return"))
		}
	}
	if routes != nil {
		shape := *routes
		shape.IDs = rapid.SliceOfN(rapid.Byte(), 0, n).Draw(t, "routes")
		shape.IDs = bytes.Repeat(shape.IDs, shape.Row()) // any number of tokens up to n
		r.Routes = &shape
	}
	return r
}

func TestWrittenBatchReadsBack(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		rows, valued := make([]Row, rapid.IntRange(1, 5).Draw(t, "rows")), rapid.Bool().Draw(t, "valued")
		var routes *milepost.Routes
		if rapid.Bool().Draw(t, "routed") {
			routes = &milepost.Routes{Layers: rapid.IntRange(1, 3).Draw(t, "layers"), TopK: rapid.IntRange(1, 4).Draw(t, "top k"), Size: rapid.IntRange(1, 2).Draw(t, "size")}
		}
		for i := range rows {
			rows[i] = drawRow(t, fmt.Sprint("e", i), valued, routes)
		}
		path := filepath.Join(dir, "b.arrow")
		sum, err := WriteBatch(path, rows)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if digest := sha256.Sum256(data); hex.EncodeToString(digest[:]) != sum {
			t.Fatal("the hash is not that of the file")
		}
		again, err := WriteBatch(path, rows)
		if err != nil || again != sum {
			t.Fatalf("the same rows gave another file: %v", err)
		}
		if got := readBack(t, data); asText(got) != asText(rows) {
			t.Fatalf("read %s, wrote %s", asText(got), asText(rows))
		}
	})
}

// asText spells rows out, routes too.
func asText(rows []Row) string {
	var b strings.Builder
	for _, r := range rows {
		routes := r.Routes
		r.Routes = nil
		fmt.Fprintln(&b, r)
		if routes != nil {
			fmt.Fprintln(&b, *routes)
		}
	}
	return b.String()
}

func readBack(t *rapid.T, data []byte) []Row {
	r, err := ipc.NewFileReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rows := make([]Row, r.NumRecords())
	for i := range rows {
		record, err := r.RecordBatchAt(i)
		if err != nil {
			t.Fatal(err)
		}
		if record.NumRows() != 1 {
			t.Fatalf("record batch %d has %d rows", i, record.NumRows())
		}
		rows[i] = rowOf(t, r.Schema(), record)
		record.Release()
	}
	return rows
}

func rowOf(t *rapid.T, schema *arrow.Schema, record arrow.RecordBatch) Row {
	row := Row{Episode: record.Column(0).(*array.String).Value(0)}
	list := func(col int) arrow.Array {
		l := record.Column(col).(*array.List)
		if start, end := l.ValueOffsets(0); start != 0 || int(end) != l.ListValues().Len() {
			t.Fatalf("column %d has offsets %d and %d", col, start, end)
		}
		return l.ListValues()
	}
	row.Tokens = list(1).(*array.Int32).Int32Values()
	row.Logprobs = list(2).(*array.Float32).Float32Values()
	row.Versions = list(3).(*array.Int32).Int32Values()
	for mask, k := list(4).(*array.Boolean), 0; k < mask.Len(); k++ {
		row.Mask = append(row.Mask, mask.Value(k))
	}
	row.Advantages = list(5).(*array.Float32).Float32Values()
	if declared, ok := schema.Metadata().GetValue("routed_experts"); ok {
		routes := milepost.Routes{IDs: record.Column(int(record.NumCols()) - 1).(*array.LargeBinary).Value(0)}
		if _, err := fmt.Sscanf(declared, "%d,%d,%d", &routes.Layers, &routes.TopK, &routes.Size); err != nil {
			t.Fatal(err)
		}
		row.Routes = &routes
	}
	if record.NumCols() > 7 {
		row.Values = list(6).(*array.Float32).Float32Values()
		row.Returns = list(7).(*array.Float32).Float32Values()
	}
	return row
}

func TestBadRowsAreRefused(t *testing.T) {
	good := func() Row {
		return Row{Episode: "e", Tokens: []int32{1, 2, 3}, Logprobs: []float32{0, -1, -2}, Versions: []int32{-1, 0, 0}, Mask: []bool{false, true, true}, Advantages: []float32{0, 1, 1}}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		spoil func(*Row)
		words []string
	}{
		"episode":          {func(r *Row) { r.Episode = "" }, []string{"episode is empty"}},
		"no tokens":        {func(r *Row) { r.Tokens = nil }, []string{"tokens is empty"}},
		"short logprobs":   {func(r *Row) { r.Logprobs = r.Logprobs[1:] }, []string{"logprobs has 2 elements", "allowed: 3"}},
		"long versions":    {func(r *Row) { r.Versions = append(r.Versions, 0) }, []string{"versions has 4 elements"}},
		"short mask":       {func(r *Row) { r.Mask = nil }, []string{"mask has 0 elements"}},
		"short advantages": {func(r *Row) { r.Advantages = nil }, []string{"advantages has 0 elements"}},
		"NaN advantage":    {func(r *Row) { r.Advantages[2] = nan }, []string{"advantages has NaN at 2"}},
		"infinite logprob": {func(r *Row) { r.Logprobs[1] = -inf }, []string{"logprobs has -Inf at 1"}},
		"positive logprob": {func(r *Row) { r.Logprobs[1] = 0.5 }, []string{"logprobs has 0.5 at 1"}},
		"negative token":   {func(r *Row) { r.Tokens[0] = -1 }, []string{"tokens has -1 at 0"}},
		"first trained":    {func(r *Row) { r.Mask[0], r.Versions[0] = true, 0 }, []string{"mask trains element 0"}},
		"values alone":     {func(r *Row) { r.Values = []float32{0, 1, 1} }, []string{"returns has 0 elements", "allowed: 3"}},
		"short values":     {func(r *Row) { r.Values, r.Returns = []float32{1}, r.Advantages }, []string{"values has 1 elements"}},
		"NaN return":       {func(r *Row) { r.Values, r.Returns = r.Advantages, []float32{0, nan, 0} }, []string{"returns has NaN at 1"}},
		"values in one":    {func(r *Row) { r.Values, r.Returns = r.Advantages, r.Advantages }, []string{"in some rows and not in others"}},
		"no version":       {func(r *Row) { r.Versions[2] = -1 }, []string{"versions has -1 at 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			bad, dir := good(), t.TempDir()
			c.spoil(&bad)
			_, err := WriteBatch(filepath.Join(dir, "b.arrow"), []Row{good(), bad})
			if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "row 1") {
				t.Fatalf("error %v", err)
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left %v", left)
			}
		})
	}
	if _, err := WriteBatch(filepath.Join(t.TempDir(), "no/such/dir/b.arrow"), []Row{good()}); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("a missing directory gave %v", err)
	}
	if _, err := WriteBatch(filepath.Join(t.TempDir(), "b.arrow"), nil); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("no rows gave %v", err)
	}
}
