// Package tfevents writes the event files that TensorBoard reads: scalars by name and step.
//
// No maintained Go library for them was found, and the format is small. A file is a row of TFRecords:
//
//	uint64 length | uint32 masked CRC-32C of the length | Event, a protocol buffer | uint32 masked CRC-32C of the Event
//
// all little-endian. Of tensorflow.Event (core/util/event.proto) these fields are used: wall_time = 1, step = 2,
// file_version = 3, summary = 5, session_log = 7. A scalar is Summary.Value.simple_value, a float32, as every writer
// before TensorFlow 2 made it and every reader takes it. Images or histograms would be another Value here.
package tfevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	milepost "github.com/milepost-rl/milepost"
)

// Point is what was measured at one time: values by name at a step.
type Point struct {
	Time   time.Time
	Step   int64
	Values map[string]float64 // written as float32; a value that is not finite is written as it is
}

// Writer appends to one event file. It is not safe for concurrent use.
//
// Invariant: in the file the steps of each name grow, so that no reader sees one twice.
type Writer struct {
	file *os.File
	last map[string]int64 // greatest step written, by name
}

const prefix = "events.out.tfevents."

// Rewrite replaces the event files of a folder by one new file with the given points, open for more. Points may be in any
// order and may repeat a name at a step; the later one counts. A reader that follows the folder drops what it had read of
// the old files: the new one begins with the start of a session at step 0, and its name sorts behind theirs.
func Rewrite(dir string, now time.Time, points []Point) (w *Writer, err error) {
	const op = "tfevents: rewrite"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	old, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s%010d.%09d.milepost", prefix, now.Unix(), now.Nanosecond()))
	for slices.ContainsFunc(old, func(o string) bool { return o >= path }) { // a clock that stood still or was set back
		now = now.Add(time.Second)
		path = filepath.Join(dir, fmt.Sprintf("%s%010d.%09d.milepost", prefix, now.Unix(), now.Nanosecond()))
	}
	w = &Writer{last: map[string]int64{}}
	if w.file, err = os.CreateTemp(dir, ".new-*"); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	err = w.begin(now)
	for _, p := range merged(points) {
		if err == nil {
			err = w.Add(p)
		}
	}
	if err == nil {
		err = errors.Join(w.file.Chmod(0o644), os.Rename(w.file.Name(), path))
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, errors.Join(err, w.file.Close(), os.Remove(w.file.Name())))
	}
	return w, milepost.Wrap(op, milepost.KindUnavailable, retire(old))
}

// retire empties the event files that were replaced, and removes those that the time before emptied: TensorBoard's Python
// reader does not find the next file where the one it stands at is gone.
func retire(files []string) (err error) {
	for _, f := range files {
		info, failed := os.Stat(f)
		switch {
		case failed != nil:
			err = errors.Join(err, failed)
		case info.Size() == 0:
			err = errors.Join(err, os.Remove(f))
		default:
			err = errors.Join(err, os.Truncate(f, 0))
		}
	}
	return err
}

// merged orders points by step, with each name once a step.
func merged(points []Point) []Point {
	type place struct {
		name string
		step int64
	}
	latest := map[place]int{}
	for i, p := range points {
		for name := range p.Values {
			latest[place{name, p.Step}] = i
		}
	}
	var out []Point
	for i, p := range points {
		values := map[string]float64{}
		for name, v := range p.Values {
			if latest[place{name, p.Step}] == i {
				values[name] = v
			}
		}
		if len(values) > 0 {
			out = append(out, Point{p.Time, p.Step, values})
		}
	}
	slices.SortStableFunc(out, func(a, b Point) int { return int(a.Step - b.Step) })
	return out
}

// begin writes the file's version, and that a session starts.
func (w *Writer) begin(now time.Time) error {
	version := protowire.AppendTag(event(now, 0), 3, protowire.BytesType)
	session := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1) // SessionLog.status = START
	start := protowire.AppendBytes(protowire.AppendTag(event(now, 0), 7, protowire.BytesType), session)
	return errors.Join(w.record(protowire.AppendString(version, "brain.Event:2")), w.record(start))
}

// Follows reports whether every value of p lies behind what the file has under its name: only then may it be added.
func (w *Writer) Follows(p Point) bool {
	for name := range p.Values {
		if last, ok := w.last[name]; ok && p.Step <= last {
			return false
		}
	}
	return true
}

// Add appends one point. After an error the end of the file may be torn: close it and Rewrite.
func (w *Writer) Add(p Point) error {
	const op = "tfevents: add"
	if !w.Follows(p) {
		return milepost.E(op, milepost.KindConflict, "step %d does not lie behind the steps that were written", p.Step)
	}
	var summary []byte
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		value := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		value = protowire.AppendFixed32(protowire.AppendTag(value, 2, protowire.Fixed32Type), math.Float32bits(float32(p.Values[name])))
		summary = protowire.AppendBytes(protowire.AppendTag(summary, 1, protowire.BytesType), value)
	}
	if err := w.record(protowire.AppendBytes(protowire.AppendTag(event(p.Time, p.Step), 5, protowire.BytesType), summary)); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	for name := range p.Values {
		w.last[name] = p.Step
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error {
	return milepost.Wrap("tfevents: close", milepost.KindUnavailable, w.file.Close())
}

// event begins an Event with its time and step.
func event(at time.Time, step int64) []byte {
	b := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), math.Float64bits(float64(at.Unix())+float64(at.Nanosecond())/1e9))
	return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(step))
}

// record writes one TFRecord by one write, so that a reader sees it whole or torn at the end.
func (w *Writer) record(data []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, masked(data))
	n, err := w.file.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is the checksum of a TFRecord: CRC-32C, rotated right by 15 bits, plus a constant, so that the checksum of data
// that holds checksums is none of them (tensorflow/core/lib/hash/crc32c.h).
func masked(data []byte) uint32 {
	c := crc32.Checksum(data, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
