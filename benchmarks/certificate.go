package benchmarks

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
)

// CertificatesFile is the name of the file, beside [TasksFile], with the certificates of a set: one JSON object a line,
// in the order of their tasks' ids.
const CertificatesFile = "certificates.jsonl"

// certificateFormat changes when older certificates may not be trusted any more.
const certificateFormat = 1

// The checks that a certificate can tell of.
const (
	CheckRuns      = "runs"      // reference patch and untouched repository, Certificate.Runs times each
	CheckGrader    = "grader"    // sabotage does not resolve the task
	CheckLeaks     = "leaks"     // the agent's view holds neither the fix nor hidden tests
	CheckStatement = "statement" // the statement holds neither the fix nor the tests' names
)

// Certificate says what was found of one task by running it. It is the task's as long as Image, Digest and Row are.
type Certificate struct {
	Format   int                `json:"format"`
	Task     string             `json:"task"`
	Image    string             `json:"image"`              // Task.Image
	Digest   string             `json:"digest,omitempty"`   // content address of the image, where the driver knows one
	Row      string             `json:"row"`                // [RowHash] of the task
	By       string             `json:"by"`                 // what proved it: "validate", or the maker
	Checks   []string           `json:"checks"`             // what was checked, sorted
	Runs     int                `json:"runs"`               // runs of each side
	Problems []Finding          `json:"problems,omitempty"` // why the task is not fit for use; none: certified
	Warnings []Finding          `json:"warnings,omitempty"` // what a person should know; --strict takes them for problems
	Flaky    []Flake            `json:"flaky,omitempty"`    // tests whose runs on one tree differed
	Times    map[string]Seconds `json:"times,omitempty"`    // by phase: untouched, reference, sabotage
	Sabotage []Sabotage         `json:"sabotage,omitempty"` // what was tried on the grader
}

// Finding is one thing that a check found.
type Finding struct {
	Check string `json:"check"` // one of the checks
	What  string `json:"what"`  // in words
}

// Flake is a test whose state differed between runs of one tree. The posterior of its pass rate there is
// Beta(1+passed, 1+runs-passed), from a uniform prior.
type Flake struct {
	Test   string  `json:"test"`
	Side   string  `json:"side"`   // untouched or reference
	Passed int     `json:"passed"` // runs that it passed in
	Runs   int     `json:"runs"`
	Mean   float64 `json:"mean"` // of the posterior
	Low    float64 `json:"low"`  // bounds of the central 95 % credible interval
	High   float64 `json:"high"`
}

// Seconds sums up times of runs.
type Seconds struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// Sabotage is one try to sway the grader on a tree whose fault is not mended.
type Sabotage struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`        // refused (only protected files were touched), unresolved or resolved
	From    string `json:"from,omitempty"` // task that it was tried on, where that was another of the same harness
}

// OK reports whether the task is certified; strict takes warnings for problems.
func (c *Certificate) OK(strict bool) bool {
	return len(c.Problems) == 0 && (!strict || len(c.Warnings) == 0)
}

// Covers reports whether the certificate is of a whole validation with n or more runs of each side, or one that stopped
// since it found a problem: makers check less.
func (c *Certificate) Covers(n int) bool {
	for _, check := range []string{CheckRuns, CheckGrader, CheckLeaks, CheckStatement} {
		if !slices.Contains(c.Checks, check) {
			return false
		}
	}
	return c.Runs >= n || !c.OK(false)
}

// Reason is the first problem in words, "" where there is none.
func (c *Certificate) Reason() string {
	if len(c.Problems) == 0 {
		return ""
	}
	return c.Problems[0].What
}

// FlakyTests are the names of the flaky tests, sorted, each once.
func (c *Certificate) FlakyTests() []string {
	var out []string
	for _, f := range c.Flaky {
		out = append(out, f.Test)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Stale says why the certificate is not the task's any more, or "".
func (c *Certificate) Stale(t *milepost.Task) (string, error) {
	row, err := RowHash(t)
	switch {
	case err != nil:
		return "", err
	case c.Format != certificateFormat:
		return "it was written by another version", nil
	case c.Image != t.Image:
		return "the image is another: " + t.Image + ", not " + c.Image, nil
	case c.Row != row:
		return "the task has changed", nil
	}
	return "", nil
}

// RowHash is the hash of a task's content, wherever its files lie: two tasks with one hash ask and judge the same. Split,
// weight and what a certificate itself adds do not count; of the files in Grading.Folder only the folder's name does,
// since importers write them once.
func RowHash(t *milepost.Task) (string, error) {
	c := *t
	c.Repo, c.Split, c.Weight, c.Flaky = "", "", 0, nil
	if t.Grading != nil {
		g := *t.Grading
		g.Folder = filepath.Base(g.Folder)
		c.Grading = &g
	}
	if t.Origin != nil {
		o := *t.Origin
		o.File, o.Row = "", 0
		c.Origin = &o
	}
	b, err := json.Marshal(&c)
	if err != nil {
		return "", milepost.Wrap("benchmarks: hash task", milepost.KindInternal, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// NewCertificate begins the certificate of a task.
func NewCertificate(t *milepost.Task, by string) (*Certificate, error) {
	row, err := RowHash(t)
	return &Certificate{Format: certificateFormat, Task: t.ID, Image: t.Image, Row: row, By: by}, err
}

// LoadCertificates reads the certificates of a set, by task: those of certificates.jsonl and, over them, those that an
// interrupted validation left. A set without any has none. Errors: KindCorrupt, naming file and line.
func LoadCertificates(set string) (map[string]*Certificate, error) {
	dir, err := setDir(set)
	if err != nil {
		return nil, err
	}
	out := map[string]*Certificate{}
	for _, f := range []struct {
		name string
		torn bool // the last line may be half written
	}{{CertificatesFile, false}, {partFile, true}} {
		if err := readCertificates(filepath.Join(dir, f.name), f.torn, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// setDir is the folder of a set that is named by folder or file.
func setDir(set string) (string, error) {
	file, err := tasksFile(set)
	return filepath.Dir(file), err
}

func readCertificates(path string, torn bool, into map[string]*Certificate) error {
	const op = "benchmarks: load certificates"
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	for i, line := range lines {
		if len(bytes.TrimSpace(line)) == 0 || torn && !bytes.HasSuffix(line, []byte("\n")) {
			continue
		}
		c := &Certificate{}
		if err := json.Unmarshal(line, c); err != nil {
			return milepost.E(op, milepost.KindCorrupt, "%s line %d: %w; remove the file and validate the set again", path, i+1, err)
		}
		into[c.Task] = c
	}
	return nil
}

// SaveCertificates writes the certificates of a set, whole or not at all, and takes away what an interrupted validation
// left.
func SaveCertificates(set string, certs map[string]*Certificate) error {
	const op = "benchmarks: save certificates"
	dir, err := setDir(set)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	w := bufio.NewWriter(&buf)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, id := range slices.Sorted(maps.Keys(certs)) {
		if err := enc.Encode(certs[id]); err != nil {
			return milepost.Wrap(op, milepost.KindInternal, err)
		}
	}
	if err := w.Flush(); err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	if err := WriteWhole(filepath.Join(dir, CertificatesFile), buf.Bytes()); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := os.Remove(filepath.Join(dir, partFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return nil
}

// partFile holds what an unfinished validation found, a line as soon as a task is done.
const partFile = ".certificates.part.jsonl"

// CertificateLog appends to what [LoadCertificates] reads, so that a validation that is killed goes on where it was.
// [SaveCertificates] ends it. One goroutine at a time may use it.
type CertificateLog struct{ file *os.File }

// OpenCertificateLog opens the log of a set, for one validation at a time: KindConflict where another holds it. A line
// that a dead writer left half written is cut off.
func OpenCertificateLog(set string) (*CertificateLog, error) {
	const op = "benchmarks: open certificate log"
	dir, err := setDir(set)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, partFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { // ends with the process
		_ = f.Close()
		return nil, milepost.E(op, milepost.KindConflict, "%s: another process is validating the set (%w); wait for it", dir, err)
	}
	b, err := os.ReadFile(f.Name())
	if err == nil {
		whole := int64(bytes.LastIndexByte(b, '\n') + 1)
		if err = f.Truncate(whole); err == nil {
			_, err = f.Seek(whole, 0)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return &CertificateLog{f}, nil
}

// Add writes one certificate through to the disk.
func (l *CertificateLog) Add(c *Certificate) error {
	b, err := json.Marshal(c)
	if err == nil {
		_, err = l.file.Write(append(b, '\n'))
	}
	if err == nil {
		err = l.file.Sync()
	}
	return milepost.Wrap("benchmarks: add certificate", milepost.KindUnavailable, err)
}

// Close closes the file, which stays.
func (l *CertificateLog) Close() error {
	return milepost.Wrap("benchmarks: close certificate log", milepost.KindUnavailable, l.file.Close())
}

// carryCertificates gives a new set the certificates that its tasks have in the sets they came from. They stay true: what a
// certificate is tied to is neither split nor weight.
func carryCertificates(to string, ids map[string]bool, from ...string) error {
	out := map[string]*Certificate{}
	for _, set := range from {
		certs, err := LoadCertificates(set)
		if err != nil {
			return err
		}
		for id, c := range certs {
			if ids[id] {
				out[id] = c
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return SaveCertificates(to, out)
}

// SumTimes is the least, the median and the greatest of some times.
func SumTimes(times []time.Duration) Seconds {
	if len(times) == 0 {
		return Seconds{}
	}
	s := slices.Clone(times)
	slices.Sort(s)
	median := (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	return Seconds{s[0].Seconds(), median.Seconds(), s[len(s)-1].Seconds()}
}

// sortedChecks joins checks without repetition.
func sortedChecks(checks ...string) []string {
	slices.Sort(checks)
	return slices.Compact(checks)
}

// String is one line for a person.
func (c *Certificate) String() string {
	words := []string{"certified"}
	if !c.OK(false) {
		words[0] = "not fit: " + c.Reason()
	}
	if n := len(c.FlakyTests()); n > 0 {
		words = append(words, fmt.Sprintf("%d flaky tests", n))
	}
	return strings.Join(words, ", ")
}
