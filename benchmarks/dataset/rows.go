package dataset

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"

	milepost "github.com/milepost-rl/milepost"
)

// Rows gives the rows of one data file (JSON lines, a JSON array or object, Parquet; compressed where its name says so), for
// readers of rows that are no tasks. A faulty row is an error of kind KindInvalid that names it, and reading goes on behind
// it where the file allows; any other error is the last.
func Rows(ctx context.Context, path string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		r, err := fileSource(path, path).open(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.close() // nothing was written
		for {
			row, err := r.next()
			if errors.Is(err, io.EOF) {
				return
			}
			var end unreadableError
			last := err != nil && (milepost.KindOf(err) != milepost.KindInvalid || errors.As(err, &end))
			if !yield(row, err) || last {
				return
			}
		}
	}
}

// Value is a column as it was read, in JSON; nil where the row has none.
func (r *Row) Value(column string) json.RawMessage { return r.cols[column] }
