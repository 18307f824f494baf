package evaluate

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	milepost "github.com/milepost-rl/milepost"
)

// MaxAttempts bounds the attempts at one task.
const MaxAttempts = 10000

// Attempt is one planned attempt.
type Attempt struct {
	ID    string // "<task>/<index>", unique in the evaluation
	Task  *milepost.Task
	Index int // within the task, from 0
	Seed  int64
}

// AttemptID names an attempt.
func AttemptID(task string, index int) string { return fmt.Sprintf("%s/%d", task, index) }

// Plan lists n attempts at each task: the first of every task, then the second of every task, so that an evaluation cut
// short has whole rounds. An attempt's seed depends on seed, task and index alone: neither other tasks nor a greater n
// change it.
func Plan(tasks []*milepost.Task, n int, seed int64) []Attempt {
	out := make([]Attempt, 0, len(tasks)*n)
	for a := range n {
		for _, t := range tasks {
			out = append(out, Attempt{ID: AttemptID(t.ID, a), Task: t, Index: a, Seed: seedOf(seed, t.ID, a)})
		}
	}
	return out
}

// seedOf is below 2^53, so that it survives JSON numbers.
func seedOf(seed int64, task string, index int) int64 {
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(seed))
	binary.LittleEndian.PutUint64(b[8:], uint64(index))
	_, _ = h.Write(b[:]) // a hash takes everything
	_, _ = h.Write([]byte(task))
	return int64(h.Sum64() >> 11)
}
