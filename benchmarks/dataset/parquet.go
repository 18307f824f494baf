package dataset

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	milepost "github.com/milepost-rl/milepost"
)

const (
	batchBytes = 8 << 20   // what one batch of rows should hold, by the file's own statistics
	batchRows  = 256       // at most so many rows a batch
	maxPage    = 256 << 20 // largest page that is decoded, in bytes: writers cut pages near one MiB, so one this large holds a giant value
)

// parquetRows reads a Parquet file a batch at a time; columns are streamed page by page, so that memory follows the batch
// and not the row group.
type parquetRows struct {
	name  string
	file  *file.Reader
	recs  pqarrow.RecordReader
	rec   arrow.RecordBatch // the batch at hand, owned by recs; nil before the first
	at    int               // next row of rec
	row   int               // rows read
	total int64
}

func openParquet(ctx context.Context, path, name string) (_ reader, err error) {
	defer recovered(&err, name, 0)
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	props.BufferedStreamEnabled = true
	props.MaxUncompressedPageSize, props.MaxCompressedPageSize = maxPage, maxPage
	f, err := file.OpenParquetFile(path, false, file.WithReadProps(props))
	if err != nil {
		return nil, milepost.E("dataset: open", milepost.KindCorrupt, "%s: no whole Parquet file (cut off, or another format): %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	arrowProps := pqarrow.ArrowReadProperties{BatchSize: batchOf(f)}
	fr, err := pqarrow.NewFileReader(f, arrowProps, memory.DefaultAllocator)
	if err != nil {
		return nil, milepost.E("dataset: open", milepost.KindCorrupt, "%s: Parquet schema: %w", name, err)
	}
	recs, err := fr.GetRecordReader(ctx, nil, nil)
	if err != nil {
		return nil, milepost.E("dataset: open", milepost.KindCorrupt, "%s: Parquet: %w", name, err)
	}
	return &parquetRows{name: name, file: f, recs: recs, total: f.NumRows()}, nil
}

// batchOf chooses the rows of a batch from the mean size of a row.
func batchOf(f *file.Reader) int64 {
	var bytes int64
	for i := range f.NumRowGroups() {
		bytes += f.MetaData().RowGroups[i].GetTotalByteSize()
	}
	mean := max(bytes/max(f.NumRows(), 1), 1)
	return min(max(batchBytes/mean, 1), batchRows)
}

// recovered turns a panic of the Parquet decoder, which damaged files can cause, into an error.
func recovered(err *error, name string, row int) {
	if p := recover(); p != nil {
		*err = cannotRead(name, row, fmt.Errorf("damaged Parquet: %v", p))
	}
}

func (p *parquetRows) close() error {
	p.recs.Release()
	return p.file.Close()
}

func (p *parquetRows) next() (_ *Row, err error) {
	defer recovered(&err, p.name, p.row)
	for p.rec == nil || p.at >= int(p.rec.NumRows()) {
		if !p.recs.Next() {
			return nil, p.end()
		}
		p.rec, p.at = p.recs.RecordBatch(), 0
	}
	cols := make(map[string]json.RawMessage, p.rec.NumCols())
	i := p.at
	p.at++
	p.row++
	size := 0
	for c, field := range p.rec.Schema().Fields() {
		if _, twice := cols[field.Name]; twice {
			return nil, faultAt(p.name, p.row, idIn(cols, nil), &columnError{field.Name, errors.New("twice in one file")})
		}
		v, err := cell(p.rec.Column(c), i)
		if err == nil {
			if size += len(v); size > MaxRow {
				err = tooLarge()
			}
		}
		if err != nil {
			return nil, faultAt(p.name, p.row, idIn(cols, nil), &columnError{field.Name, err})
		}
		cols[field.Name] = v
	}
	return &Row{File: p.name, Number: p.row, cols: cols}, nil
}

// end says why there is no further row.
func (p *parquetRows) end() error {
	if err := p.recs.Err(); err != nil && !errors.Is(err, io.EOF) {
		return cannotRead(p.name, p.row, err)
	}
	if int64(p.row) != p.total {
		return cannotRead(p.name, p.row, fmt.Errorf("the file declares %d rows", p.total))
	}
	return io.EOF
}

// cell is one value as JSON. Text that is no UTF-8 is an error, bytes become base64, a number that JSON has no word for
// becomes null.
func cell(a arrow.Array, i int) (json.RawMessage, error) {
	if a.IsNull(i) {
		return json.RawMessage("null"), nil
	}
	switch a := a.(type) {
	case *array.String:
		return text(a.Value(i))
	case *array.LargeString:
		return text(a.Value(i))
	case *array.StringView:
		return text(a.Value(i))
	case *array.Binary:
		return text(base64.StdEncoding.EncodeToString(a.Value(i)))
	case *array.LargeBinary:
		return text(base64.StdEncoding.EncodeToString(a.Value(i)))
	case *array.Dictionary:
		return cell(a.Dictionary(), a.GetValueIndex(i))
	case array.ListLike: // lists and maps; a map's elements are structs of key and value
		start, end := a.ValueOffsets(i)
		return listCell(a.ListValues(), int(start), int(end))
	case *array.Struct:
		return structCell(a, i)
	case *array.Float64:
		return number(a.Value(i))
	case *array.Float32:
		return number(float64(a.Value(i)))
	}
	v, err := json.Marshal(a.GetOneForMarshal(i))
	if err != nil {
		return nil, fmt.Errorf("a value of type %s: %w", a.DataType(), err)
	}
	return v, nil
}

func number(f float64) (json.RawMessage, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return json.RawMessage("null"), nil
	}
	return json.Marshal(f)
}

// text encodes a string without touching any of its characters.
func text(s string) (json.RawMessage, error) {
	if len(s) > MaxRow {
		return nil, tooLarge()
	}
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("not UTF-8 at byte %d of the value; a text column is UTF-8", badByte([]byte(s)))
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(s)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

func listCell(values arrow.Array, start, end int) (json.RawMessage, error) {
	b := []byte{'['}
	for i := start; i < end; i++ {
		v, err := cell(values, i)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i-start+1, err)
		}
		if len(b)+len(v) > MaxRow {
			return nil, tooLarge()
		}
		if i > start {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']'), nil
}

func structCell(a *array.Struct, i int) (json.RawMessage, error) {
	b := []byte{'{'}
	for f, field := range a.DataType().(*arrow.StructType).Fields() {
		v, err := cell(a.Field(f), i)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", field.Name, err)
		}
		name, err := text(field.Name)
		if err != nil {
			return nil, err
		}
		if f > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, name...), ':'), v...)
	}
	return append(b, '}'), nil
}
