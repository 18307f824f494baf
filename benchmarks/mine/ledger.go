package mine

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	milepost "github.com/milepost-rl/milepost"
)

// LedgerFile is the name of the file in the set's folder that tells what became of every candidate, in order.
const LedgerFile = "mined.jsonl"

// Verdict is one line of the ledger: what became of a candidate.
type Verdict struct {
	Candidate string         `json:"candidate"`
	Source    string         `json:"source,omitempty"`
	Reason    string         `json:"reason,omitempty"` // why it is no task; "" for a task
	Detail    string         `json:"detail,omitempty"`
	Task      *milepost.Task `json:"task,omitempty"`
}

// ledger is the file and what it held when it was opened. A line is written and synced before the next candidate is
// begun; one that a crash tore is not there.
type ledger struct {
	file *os.File
	done map[string]Verdict
}

// head is the first line: the configuration, since verdicts of another are worth nothing.
type head struct {
	Config string `json:"config"`
}

func keyOf(cfg Config, python string) string {
	cfg.Count, cfg.Cache, cfg.Python = 0, "", python
	b, err := json.Marshal(cfg)
	if err != nil {
		panic(err) // plain values always marshal
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// openLedger opens or makes the ledger of a configuration. Kinds: conflict where it is of another, corrupt, unavailable.
func openLedger(path, key string) (*ledger, error) {
	const op = "mine: ledger"
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	l := &ledger{done: map[string]Verdict{}}
	first := true
	s := bufio.NewScanner(bytes.NewReader(whole))
	s.Buffer(nil, 64<<20)
	for n := 1; s.Scan(); n++ {
		var h head
		var v Verdict
		var into any = &v
		if first {
			into = &h
		}
		if err := json.Unmarshal(s.Bytes(), into); err != nil {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s line %d: %w", path, n, err)
		}
		if first && h.Config != key {
			return nil, milepost.E(op, milepost.KindConflict, "%s is of another configuration; take another folder, or remove it", path)
		}
		if !first {
			l.done[v.Candidate] = v
		}
		first = false
	}
	if l.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	err = l.file.Truncate(int64(len(whole)))
	if err == nil {
		_, err = l.file.Seek(0, 2)
	}
	if err == nil && first {
		err = l.write(head{key})
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, errors.Join(err, l.file.Close()))
	}
	return l, nil
}

// add notes a verdict.
func (l *ledger) add(v Verdict) error {
	l.done[v.Candidate] = v
	return milepost.Wrap("mine: ledger", milepost.KindUnavailable, l.write(v))
}

func (l *ledger) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err = l.file.Write(append(b, '\n')); err != nil {
		return err
	}
	return l.file.Sync()
}
