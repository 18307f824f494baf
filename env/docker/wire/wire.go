// Package wire is what the docker driver and the agent inside a container say to each other over one stream a request.
//
// A stream carries frames: a type, a length and so many bytes. The driver sends a [Request] and, where the operation has
// one, a payload; the agent answers with an [Answer], before or after a payload of its own. Paths, arguments and link
// targets are byte strings, since file names need not be UTF-8. errors.go maps errors to a closed set of codes, so that
// the driver returns what package driver asks for.
//
// What comes from a container is not trusted: every length is bounded before anything is allocated.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"
)

// Op is one operation of the agent.
type Op string

// The operations, with what they use of a Request, their payload and what they answer with.
const (
	OpUnpack  Op = "unpack"  // payload: a tar stream that becomes the workspace, which is emptied first
	OpCopy    Op = "copy"    // the workspace, emptied first, becomes what the base volume holds; answers Tree
	OpStat    Op = "stat"    // Path; answers Infos[0]
	OpReadDir Op = "readdir" // Path; answers Infos
	OpRead    Op = "read"    // Path, Limit; answers Infos[0], then the content as payload
	OpWrite   Op = "write"   // Path, Mode; payload: the content
	OpSymlink Op = "symlink" // Path, Target
	OpRemove  Op = "remove"  // Path
	OpChanged Op = "changed" // answers Entries: what differs from what was unpacked, without content
	OpFetch   Op = "fetch"   // Paths; answers, then a tar stream as payload
	OpTree    Op = "tree"    // answers Tree of the workspace, caches left out
	OpArchive Op = "archive" // answers, then a tar stream of the workspace, caches left out, as payload
	OpShape   Op = "shape"   // payload: Files as JSON; removes what is none of them, answers Tree of what was there and in Entries those that are missing
	OpAdd     Op = "add"     // payload: a tar stream, added to the workspace
	OpAdopt   Op = "adopt"   // makes everything in the workspace readable for all users; answers Tree
	OpExec    Op = "exec"    // ID, Command; frames as package agent describes them
	OpKill    Op = "kill"    // ID; ends a command
)

// Request opens a stream.
type Request struct {
	Op      Op
	Path    []byte      `json:",omitempty"`
	Target  []byte      `json:",omitempty"`
	Paths   [][]byte    `json:",omitempty"`
	Mode    fs.FileMode `json:",omitempty"`
	Limit   int64       `json:",omitempty"`
	ID      string      `json:",omitempty"`
	Command *Command    `json:",omitempty"`
}

// Command is one program to run.
type Command struct {
	Argv     [][]byte
	Dir      []byte
	Env      [][]byte // NAME=VALUE, over that of the image
	Wall     time.Duration
	CPU      time.Duration
	Output   int64
	FileSize int64
	Memory   int64 `json:",omitempty"` // bytes of address space of a single process, where nothing limits the sandbox as a whole
	Procs    int64 `json:",omitempty"` // processes of the user, likewise
	Long     bool  // a started command: standard output has no bound
}

// Answer ends a request, or precedes its payload.
type Answer struct {
	Code    Code    `json:",omitempty"` // "" where it went well
	Text    string  `json:",omitempty"` // of the error
	Infos   []Info  `json:",omitempty"`
	Entries []Entry `json:",omitempty"`
	Result  *Result `json:",omitempty"`
	Tree    *Tree   `json:",omitempty"`
}

// Tree describes a workspace as a whole.
type Tree struct {
	ID    string // git tree id of its files and links
	Bytes int64  // what its files take on a tmpfs
	Files int64  // files, links and directories
}

// File is one file or link that is wanted (OpShape).
type File struct {
	Path []byte
	Mode uint32 // git mode
	Blob []byte // git blob id, 20 bytes
}

// Info describes a directory entry.
type Info struct {
	Path   []byte
	Mode   fs.FileMode
	Size   int64
	Target []byte `json:",omitempty"`
}

// Entry is one path that differs from what was unpacked.
type Entry struct {
	Path    []byte
	Mode    uint32 `json:",omitempty"` // git mode
	Size    int64  `json:",omitempty"`
	Deleted bool   `json:",omitempty"`
}

// Result is what a command did.
type Result struct {
	ExitCode        int
	TimedOut        bool
	OutOfMemory     bool
	StdoutTruncated bool
	StderrTruncated bool
	Duration        time.Duration
}

// Frame is the type of a frame.
type Frame byte

// The frames. Data and End carry a payload in either direction; the rest belongs to OpExec.
const (
	FrameRequest  Frame = 'Q'
	FrameAnswer   Frame = 'A'
	FrameData     Frame = 'D' // from the driver of OpExec: standard input
	FrameEnd      Frame = 'Z' // the payload or standard input has ended
	FrameAccepted Frame = 'C' // OpKill reaches the command from here on
	FrameStarted  Frame = 'S' // the command runs
	FrameStdout   Frame = 'O'
	FrameStderr   Frame = 'E'
)

// Bounds of frames in bytes.
const (
	MaxData   = 256 << 10
	maxHeader = 64 << 20
)

// Conn sends and receives frames on a stream. Send may be called concurrently, Receive may not.
type Conn struct {
	r  *bufio.Reader
	mu sync.Mutex // guards w
	w  io.Writer
}

// NewConn returns a Conn on a stream, which stays the caller's to close.
func NewConn(stream io.ReadWriter) *Conn {
	return &Conn{r: bufio.NewReaderSize(stream, 32<<10), w: stream}
}

// Send writes one frame.
func (c *Conn) Send(t Frame, data []byte) error {
	buf := make([]byte, 5+len(data))
	buf[0] = byte(t)
	binary.BigEndian.PutUint32(buf[1:], uint32(len(data)))
	copy(buf[5:], data)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.w.Write(buf)
	return err
}

// SendJSON writes one frame that holds v.
func (c *Conn) SendJSON(t Frame, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(t, data)
}

// Receive reads one frame.
func (c *Conn) Receive() (Frame, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, nil, err
	}
	t, n := Frame(head[0]), binary.BigEndian.Uint32(head[1:])
	limit := uint32(MaxData)
	if t == FrameRequest || t == FrameAnswer {
		limit = maxHeader
	}
	if n > limit {
		return 0, nil, fmt.Errorf("a frame %q of %d bytes is longer than %d", t, n, limit)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(c.r, data); err != nil {
		return 0, nil, fmt.Errorf("a frame %q was cut off: %w", t, io.ErrUnexpectedEOF)
	}
	return t, data, nil
}

// ReceiveJSON reads one frame of the type into v.
func (c *Conn) ReceiveJSON(want Frame, v any) error {
	t, data, err := c.Receive()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("a frame %q came instead of %q", t, want)
	}
	return json.Unmarshal(data, v)
}

// Payload reads the data frames up to the end frame.
func (c *Conn) Payload() io.Reader { return &payload{c: c} }

type payload struct {
	c    *Conn
	left []byte
	err  error
}

func (p *payload) Read(b []byte) (int, error) {
	for len(p.left) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		t, data, err := p.c.Receive()
		switch {
		case err != nil:
			p.err = io.ErrUnexpectedEOF
		case t == FrameEnd:
			p.err = io.EOF
		case t == FrameData:
			p.left = data
		default:
			p.err = fmt.Errorf("a frame %q came inside a payload", t)
		}
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

// PayloadWriter sends data frames; Close sends the end frame.
func (c *Conn) PayloadWriter() io.WriteCloser { return payloadWriter{c} }

type payloadWriter struct{ c *Conn }

func (w payloadWriter) Write(b []byte) (int, error) {
	for sent := 0; ; {
		n := min(len(b)-sent, MaxData)
		if n == 0 {
			return sent, nil
		}
		if err := w.c.Send(FrameData, b[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
}

func (w payloadWriter) Close() error { return w.c.Send(FrameEnd, nil) }
