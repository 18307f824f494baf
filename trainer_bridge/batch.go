package trainerbridge

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	milepost "github.com/milepost-rl/milepost"
)

// Row is one training sequence. All slices have the length T of Tokens; element t speaks of token t given tokens
// before it, so element 0 is never trained.
type Row struct {
	Episode    string
	Tokens     []int32
	Logprobs   []float32 // the sampler's; 0 where not sampled
	Versions   []int32   // weight version; -1 where not sampled
	Mask       []bool    // token t is trained
	Advantages []float32 // read only where Mask is true

	// For a trainer with a value head: in every row of a batch or in none, and read only where Mask is true.
	Values  []float32 // the head's before the update ([Client.Values]); nil where there are none
	Returns []float32 // what the head learns; nil where Values is nil

	// Routes are the experts that the sampler chose for the first tokens; in every row of a batch, of one shape, or in none.
	Routes *milepost.Routes
}

// Batch names a batch file for [Client.Update].
type Batch struct {
	ID     string // unique within a run; weights that already hold it refuse it
	Path   string // Arrow IPC file as WriteBatch makes it, on a file system that the trainer sees
	SHA256 string // hex digest of the file
}

// valueFields are the optional columns of proto/batch.schema.
var valueFields = []arrow.Field{
	{Name: "values", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
	{Name: "returns", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
}

// routesField is another; its shape is declared in the schema's metadata under its name.
var routesField = arrow.Field{Name: "routed_experts", Type: arrow.BinaryTypes.LargeBinary}

// batchSchema is proto/batch.schema in Arrow's terms (a test compares them), without the optional columns.
var batchSchema = arrow.NewSchema([]arrow.Field{
	{Name: "episode", Type: arrow.BinaryTypes.String},
	{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)},
	{Name: "logprobs", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
	{Name: "versions", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)},
	{Name: "mask", Type: arrow.ListOf(arrow.FixedWidthTypes.Boolean)},
	{Name: "advantages", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
}, nil)

const opBatch = "trainerbridge: write batch"

// validateRow reports what is wrong with row i, naming row and field.
func validateRow(i int, r *Row) error {
	n := len(r.Tokens)
	bad := func(field, format string, args ...any) error {
		return milepost.E(opBatch, milepost.KindInvalid, "row %d (episode %q): %s "+format, append([]any{i, r.Episode, field}, args...)...)
	}
	if r.Episode == "" {
		return bad("episode", "is empty; allowed: the episode's id")
	}
	if n == 0 {
		return bad("tokens", "is empty; allowed: one token or more")
	}
	for _, f := range []struct {
		name   string
		length int
	}{{"logprobs", len(r.Logprobs)}, {"versions", len(r.Versions)}, {"mask", len(r.Mask)}, {"advantages", len(r.Advantages)}} {
		if f.length != n {
			return bad(f.name, "has %d elements; allowed: %d, as many as tokens", f.length, n)
		}
	}
	for _, f := range []struct {
		name   string
		values []float32
	}{{"values", r.Values}, {"returns", r.Returns}} {
		if (r.Values != nil || r.Returns != nil) && len(f.values) != n {
			return bad(f.name, "has %d elements; allowed: %d, as many as tokens, or neither values nor returns", len(f.values), n)
		}
		for t, x := range f.values {
			if !finite(x) {
				return bad(f.name, "has %v at %d; allowed: finite numbers", x, t)
			}
		}
	}
	if err := r.Routes.Check(n); err != nil {
		return bad("routes", "are wrong: %w", err)
	}
	if r.Mask[0] {
		return bad("mask", "trains element 0, which no token precedes; allowed: false there")
	}
	for t := range n {
		if r.Tokens[t] < 0 {
			return bad("tokens", "has %d at %d; allowed: 0 or more", r.Tokens[t], t)
		}
		if !finite(r.Advantages[t]) {
			return bad("advantages", "has %v at %d; allowed: finite numbers", r.Advantages[t], t)
		}
		if l := r.Logprobs[t]; !finite(l) || l > 1e-3 {
			return bad("logprobs", "has %v at %d; allowed: finite numbers of at most 0", l, t)
		}
		if r.Mask[t] && r.Versions[t] < 0 {
			return bad("versions", "has %d at %d, a trained token; allowed: the weight version that sampled it", r.Versions[t], t)
		}
	}
	return nil
}

func finite(x float32) bool { return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0) }

// WriteBatch writes rows as an Arrow IPC file of the schema in proto/batch.schema and returns the SHA-256 of the file
// as hex. The file appears whole or not at all, and is synced to disk. A row that breaks a rule of [Row] is an error of
// kind invalid that names row and field; a disk that fails is unavailable.
func WriteBatch(path string, rows []Row) (string, error) {
	if len(rows) == 0 {
		return "", milepost.E(opBatch, milepost.KindInvalid, "the batch has no rows; allowed: one or more")
	}
	for i := range rows {
		if err := validateRow(i, &rows[i]); err != nil {
			return "", err
		}
		if (rows[i].Values != nil) != (rows[0].Values != nil) {
			return "", milepost.E(opBatch, milepost.KindInvalid, "row %d (episode %q): values are in some rows and not in others; allowed: in all or in none", i, rows[i].Episode)
		}
		if !sameRoutes(rows[i].Routes, rows[0].Routes) {
			return "", milepost.E(opBatch, milepost.KindInvalid, "row %d (episode %q): routes are not as in row 0; allowed: of one shape in all rows, or in none", i, rows[i].Episode)
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-*")
	if err != nil {
		return "", milepost.Wrap(opBatch, milepost.KindUnavailable, err)
	}
	defer os.Remove(tmp.Name()) // nothing is left where the rename did not happen
	digest := sha256.New()
	err = writeRows(tmp, digest, rows)
	if err == nil {
		err = tmp.Chmod(0o644) // as every other file of a run: a trainer may be another user
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", milepost.Wrap(opBatch, milepost.KindUnavailable, err)
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// writeRows writes an IPC file of one record batch a row, hashes it and syncs it.
func writeRows(f *os.File, digest hash.Hash, rows []Row) error {
	out := bufio.NewWriterSize(&hashingWriter{f, digest}, 1<<20)
	schema := schemaOf(&rows[0])
	w, err := ipc.NewFileWriter(onlyWriter{out}, ipc.WithSchema(schema))
	if err != nil {
		return err
	}
	for i := range rows {
		if err := w.Write(recordOf(schema, &rows[i])); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// hashingWriter hashes what it writes, at the same time: each takes about as long as the other.
type hashingWriter struct {
	file io.Writer
	hash hash.Hash
}

func (w *hashingWriter) Write(p []byte) (int, error) {
	done := make(chan struct{})
	go func() {
		w.hash.Write(p)
		close(done)
	}()
	n, err := w.file.Write(p)
	<-done
	return n, err
}

// onlyWriter hides every method but Write, so that the Arrow writer neither seeks nor closes.
type onlyWriter struct{ io.Writer }

// sameRoutes reports whether both are there and of one shape, or neither is.
func sameRoutes(a, b *milepost.Routes) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameShape(b)
}

// schemaOf is the schema of a batch of rows like r.
func schemaOf(r *Row) *arrow.Schema {
	fields := batchSchema.Fields()
	if r.Values != nil {
		fields = append(fields, valueFields...)
	}
	if r.Routes == nil {
		return arrow.NewSchema(fields, nil)
	}
	shape := arrow.NewMetadata([]string{routesField.Name}, []string{fmt.Sprintf("%d,%d,%d", r.Routes.Layers, r.Routes.TopK, r.Routes.Size)})
	return arrow.NewSchema(append(fields, routesField), &shape)
}

// recordOf is a row as a record batch in the row's own memory; the mask alone, which Arrow packs to bits, is copied. Its
// buffers are not counted, so there is nothing to release.
func recordOf(schema *arrow.Schema, r *Row) arrow.RecordBatch {
	n := len(r.Tokens)
	int32s, float32s := arrow.Int32Traits.CastToBytes, arrow.Float32Traits.CastToBytes
	columns := [][]byte{int32s(r.Tokens), float32s(r.Logprobs), int32s(r.Versions), bits(r.Mask), float32s(r.Advantages)}
	if r.Values != nil {
		columns = append(columns, float32s(r.Values), float32s(r.Returns))
	}
	arrays := []arrow.Array{array.MakeFromData(array.NewData(arrow.BinaryTypes.String, 1, buffers(offsets(len(r.Episode)), []byte(r.Episode)), nil, 0, 0))}
	for i, values := range columns {
		t := schema.Field(1 + i).Type.(*arrow.ListType)
		child := array.NewData(t.Elem(), n, buffers(values), nil, 0, 0)
		arrays = append(arrays, array.MakeFromData(array.NewData(t, 1, buffers(offsets(n)), []arrow.ArrayData{child}, 0, 0)))
	}
	if r.Routes != nil {
		ends := arrow.Int64Traits.CastToBytes([]int64{0, int64(len(r.Routes.IDs))})
		arrays = append(arrays, array.MakeFromData(array.NewData(routesField.Type, 1, buffers(ends, r.Routes.IDs), nil, 0, 0)))
	}
	return array.NewRecordBatch(schema, arrays, 1)
}

// buffers are those of an array without nulls.
func buffers(parts ...[]byte) []*memory.Buffer {
	out := []*memory.Buffer{nil}
	for _, p := range parts {
		out = append(out, memory.NewBufferBytes(p))
	}
	return out
}

// offsets are those of one element of n parts.
func offsets(n int) []byte { return arrow.Int32Traits.CastToBytes([]int32{0, int32(n)}) }

// bits packs a mask as Arrow does, least bit first.
func bits(mask []bool) []byte {
	out := make([]byte, (len(mask)+7)/8)
	for i, m := range mask {
		if m {
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}
