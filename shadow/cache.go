package shadow

import (
	"encoding/json"
	"io"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// cacheEntry is one trusted result. Only trusted results are kept: a time-out or a failure of infrastructure may end
// differently next time.
type cacheEntry struct {
	V      int                 `json:"v"`
	Key    string              `json:"key"`
	Tree   string              `json:"tree"`
	Report milepost.TestReport `json:"report"`
	Worker string              `json:"worker,omitempty"`
	Ran    time.Duration       `json:"ran"`
	Sum    string              `json:"sum"` // over key, tree and report: what a damaged disk changed is not believed
}

func (e cacheEntry) sum() string {
	report, err := e.Report.MarshalText()
	if err != nil {
		return "" // not a report; matches no line
	}
	return messages.HashHex([]byte(e.Key + "/" + e.Tree + "/" + string(report)))[:16]
}

// cacheFile is the file behind the result cache.
type cacheFile struct{ lineFile }

// openCache reads the file at path, which may be missing, and opens it for appending. A torn last line (the process died
// while writing) is cut off; bad counts whole lines that do not parse, which are passed over. Errors: KindUnavailable.
func openCache(path string) (f *cacheFile, entries []cacheEntry, bad int, err error) {
	const op = "shadow: open cache"
	var lines lineFile
	err = lines.open(path, func(r io.Reader) (size int64, err error) {
		entries, size, bad, err = readCache(r)
		return size, err
	})
	if err != nil {
		return nil, nil, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return &cacheFile{lines}, entries, bad, nil
}

// readCache returns the entries and the length of the whole lines.
func readCache(r io.Reader) (entries []cacheEntry, size int64, bad int, err error) {
	size, err = readLines(r, func(line []byte) {
		var e cacheEntry
		if json.Unmarshal(line, &e) != nil || e.V != fileVersion || e.Key == "" || e.Tree == "" || len(e.Report) == 0 || e.Sum != e.sum() {
			bad++
			return
		}
		entries = append(entries, e)
	})
	return entries, size, bad, err
}

// add appends e and what earlier failures left. Errors: KindUnavailable; nothing is lost from memory then.
func (f *cacheFile) add(e cacheEntry) error {
	e.Sum = e.sum()
	return milepost.Wrap("shadow: write cache", milepost.KindUnavailable, f.append(e))
}
