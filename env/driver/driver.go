// Package driver is what a sandbox technology implements for package env: plain values and two small interfaces.
//
// A driver stays dumb. Package env has already validated every argument (paths clean, relative and slash separated;
// limits resolved, none negative; argv not empty), never calls a closed sandbox, and turns errors into kinds. A driver
// returns an error only where it, not the task, failed; what the task did (exit code, time, memory) goes into [Result].
//
// A new driver lives in a directory of its own beside env/local, and exists once it passes env/envtest.
package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// Errors that package env tells apart, besides those of io/fs and the context's own.
var (
	ErrEscapes    = errors.New("the path leads outside the workspace")
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("larger than the limit")
	ErrFull       = errors.New("the workspace is full")
	ErrInvalid    = errors.New("invalid")
)

// Limits bound one command. Zero means the default of the level above: command, then spec, then environment.
type Limits struct {
	Wall     time.Duration `yaml:"wall" json:"wall,omitempty"`           // from start to the kill
	CPU      time.Duration `yaml:"cpu" json:"cpu,omitempty"`             // processor time of a single process, whole seconds; 0 at all levels: none
	Memory   int64         `yaml:"memory" json:"memory,omitempty"`       // bytes of all processes of one command together, with what they write to /tmp
	Procs    int           `yaml:"procs" json:"procs,omitempty"`         // processes and threads of one command
	Output   int64         `yaml:"output" json:"output,omitempty"`       // bytes kept of each of stdout and stderr; the rest is read and dropped
	FileSize int64         `yaml:"file_size" json:"file_size,omitempty"` // bytes of one written file
	Disk     int64         `yaml:"disk" json:"disk,omitempty"`           // bytes that a workspace may grow by; a single command has no bound of its own
}

// Or returns l with its zero fields taken from d.
func (l Limits) Or(d Limits) Limits {
	if l.Wall == 0 {
		l.Wall = d.Wall
	}
	if l.CPU == 0 {
		l.CPU = d.CPU
	}
	if l.Memory == 0 {
		l.Memory = d.Memory
	}
	if l.Procs == 0 {
		l.Procs = d.Procs
	}
	if l.Output == 0 {
		l.Output = d.Output
	}
	if l.FileSize == 0 {
		l.FileSize = d.FileSize
	}
	if l.Disk == 0 {
		l.Disk = d.Disk
	}
	return l
}

// Validate names the first limit that is negative.
func (l Limits) Validate() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"wall", int64(l.Wall)}, {"cpu", int64(l.CPU)}, {"memory", l.Memory}, {"procs", int64(l.Procs)},
		{"output", l.Output}, {"file_size", l.FileSize}, {"disk", l.Disk},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s is %d; it must be positive, or 0 for the default", f.name, f.value)
		}
	}
	return nil
}

// Mount shows one directory of the host inside a sandbox.
type Mount struct {
	Host     string // absolute directory of the host
	Path     string // absolute path inside, outside the workspace and the system directories
	Writable bool
}

// Spec says what sandbox is wanted.
type Spec struct {
	Name  string // for people and logs
	Base  string // host directory with the base tree and its .git; never written; "" for an empty workspace
	Image string // environment identity; "" or "local:..." for the local driver

	// Workdir is the absolute directory in which Image holds the repository; the workspace lies there. Base decides
	// its content, and the driver takes from the image what it has of it; with Base "" it is what the image holds, .git
	// included. "" = the workspace is at a place of the driver's own. Drivers without images refuse it (ErrInvalid).
	Workdir string
	Hidden  []string // absolute paths of Image that commands do not see; for drivers with images

	Network bool              // whether commands reach the host's network
	Env     map[string]string // added to the environment of every command
	Limits  Limits
	Mounts  []Mount
}

// Command is one program to run in a sandbox.
type Command struct {
	Argv   []string          // Argv[0] is looked up in the sandbox's PATH
	Dir    string            // relative to the workspace root; "" is the root
	Env    map[string]string // over that of the Spec
	Stdin  []byte            // not used by Start
	Limits Limits
}

// Result is what a command did.
type Result struct {
	ExitCode        int // 128+n where signal n ended it, 127 where the program was not found
	Stdout          []byte
	Stderr          []byte
	StdoutTruncated bool // more was written than Limits.Output
	StderrTruncated bool
	TimedOut        bool // killed at Limits.Wall
	OutOfMemory     bool // a process of it was killed for Limits.Memory
	Duration        time.Duration
}

// Change is one file of a workspace that differs from the base.
type Change struct {
	Path    string // relative to the workspace root, slash separated
	Mode    uint32 // git mode: 0100644, 0100755 or 0120000; 0 where deleted
	Data    []byte // content, or the target of a symbolic link; owned by the receiver
	Deleted bool   // the base has it, the workspace has not
}

// FileInfo describes one directory entry, never what a link leads to.
type FileInfo struct {
	Path   string      // relative to the workspace root
	Mode   fs.FileMode // type and permission bits
	Size   int64       // bytes; of the target's name for a symbolic link
	Target string      // of a symbolic link
}

// Driver makes sandboxes. Its methods may be called concurrently.
type Driver interface {
	// Create makes a sandbox whose workspace equals spec.Base.
	Create(ctx context.Context, spec *Spec) (Sandbox, error)
	// Close frees what the driver itself holds. Sandboxes are closed before.
	Close() error
}

// Sandbox is one workspace and the means to run programs on it. File methods and commands may be called concurrently;
// Reset and Close are called alone.
type Sandbox interface {
	// Exec runs a command to its end; when it returns no process of the command is left.
	Exec(ctx context.Context, cmd *Command) (*Result, error)
	// Start runs a command that goes on; ctx bounds only the start.
	Start(ctx context.Context, cmd *Command) (Process, error)

	// Root is the path of the workspace as commands see it.
	Root() string
	// Inside is the path of a mount as commands see it.
	Inside(m Mount) string

	// Links are followed, inside the workspace only, but by Stat, Symlink and Remove in the last element. ReadDir sorts
	// by name.
	Stat(path string) (FileInfo, error)
	ReadDir(path string) ([]FileInfo, error)
	// ReadFile fails with ErrTooLarge beyond max bytes.
	ReadFile(path string, max int64) ([]byte, fs.FileMode, error)
	// WriteFile makes missing directories. Mode 0 keeps the mode of an existing file and is 0644 for a new one.
	WriteFile(path string, data []byte, mode fs.FileMode) error
	Symlink(target, path string) error
	// Remove removes a file, a link or a whole directory; fs.ErrNotExist where there is none.
	Remove(path string) error

	// Changes lists what differs from the base, sorted by path. Paths for which skip holds are left out, with all that
	// is below them. More than max bytes of data: ErrTooLarge.
	Changes(ctx context.Context, skip func(path string) bool, max int64) ([]Change, error)
	// Reset ends every process and brings the workspace back to the base.
	Reset(ctx context.Context) error
	// Close ends every process and removes everything the sandbox made on the host. It may be called again.
	Close() error
}

// Imaged is a Sandbox whose files came from an image. Its methods leave caches and .git out, as trees do.
type Imaged interface {
	// Tree is the git tree id of the workspace.
	Tree(ctx context.Context) (string, error)
	// Archive writes the workspace as a tar stream.
	Archive(ctx context.Context, w io.Writer) error
}

// Process is a running command.
type Process interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	// Kill ends the whole process tree. It may be called at any time, and again.
	Kill()
	// Wait returns once no process of the command is left. Result.Stdout is empty, Result.Stderr its first bytes.
	// It may be called again, and returns the same.
	Wait() (*Result, error)
}
