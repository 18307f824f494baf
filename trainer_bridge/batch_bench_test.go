package trainerbridge

import (
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkBridge carries a batch of 256 episodes of 20,000 tokens from Go's rows to PyTorch's tensors: WriteBatch, then
// batch.load in a process of the trainer's environment that is warm. Rates are bytes of the file a second. write and read
// are with their SHA-256, as in a run, and both is the way as a whole; bare is that way without hashing: the same writing
// with a hash that does nothing, and the parsing of the mapped file.
func BenchmarkBridge(b *testing.B) {
	rows := benchRows(256, 20_000)
	dir := b.TempDir()
	read := startReader(b, filepath.Join(dir, "batch.arrow"))
	var bytes int64
	var sum, bare took
	for b.Loop() {
		began := time.Now()
		digest, err := WriteBatch(filepath.Join(dir, "batch.arrow"), rows)
		if err != nil {
			b.Fatal(err)
		}
		sum.write += time.Since(began)
		load, parse := read(digest)
		sum.read, bare.read = sum.read+load, bare.read+parse

		f, err := os.Create(filepath.Join(dir, "bare.arrow"))
		if err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if err := writeRows(f, noHash{}, rows); err != nil {
			b.Fatal(err)
		}
		bare.write += time.Since(began)
		info, err := f.Stat()
		if err != nil {
			b.Fatal(err)
		}
		bytes += info.Size()
		f.Close()
	}
	rate := func(d time.Duration, unit string) { b.ReportMetric(float64(bytes)/d.Seconds()/1e9, unit) }
	rate(sum.write, "write-GB/s")
	rate(sum.read, "read-GB/s")
	rate(sum.write+sum.read, "both-GB/s")
	rate(bare.write, "bare-write-GB/s")
	rate(bare.read, "bare-read-GB/s")
	rate(bare.write+bare.read, "bare-GB/s")
}

type took struct{ write, read time.Duration }

// noHash takes bytes and no time.
type noHash struct{ hash.Hash }

func (noHash) Write(p []byte) (int, error) { return len(p), nil }

func benchRows(episodes, tokens int) []Row {
	r := rand.New(rand.NewPCG(1, 2))
	rows := make([]Row, episodes)
	for i := range rows {
		row := Row{Episode: fmt.Sprintf("train/u0001/task-%d/%d", i/8, i%8), Tokens: make([]int32, tokens), Logprobs: make([]float32, tokens),
			Versions: make([]int32, tokens), Mask: make([]bool, tokens), Advantages: make([]float32, tokens)}
		for t := range tokens {
			row.Tokens[t], row.Versions[t] = r.Int32N(150_000), -1
			if t > tokens/5 && t/200%3 == 0 {
				row.Mask[t], row.Versions[t], row.Logprobs[t], row.Advantages[t] = true, 7, -r.Float32(), r.Float32()-.5
			}
		}
		rows[i] = row
	}
	return rows
}

// startReader starts python/bench/read.py on a file; the function it returns has it read the file with that SHA-256, and
// gives the time of loading, and of parsing alone.
func startReader(b *testing.B, path string) func(digest string) (load, parse time.Duration) {
	environment, err := Environment(EnvTrainer)
	if err != nil {
		b.Skip(err)
	}
	c := exec.Command(filepath.Join(environment, "bin", "python"), "bench/read.py", path)
	c.Dir, c.Env, c.Stderr = "python", append(os.Environ(), "PYTHONPATH=."), os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			b.Error(err)
		}
	})
	return func(digest string) (time.Duration, time.Duration) {
		if _, err := fmt.Fprintln(in, digest); err != nil {
			b.Fatal(err)
		}
		var load, parse float64
		if _, err := fmt.Fscanln(out, &load, &parse); err != nil {
			b.Fatal(err)
		}
		return time.Duration(load * float64(time.Second)), time.Duration(parse * float64(time.Second))
	}
}
