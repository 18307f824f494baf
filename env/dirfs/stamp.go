package dirfs

import (
	"io/fs"
	"syscall"
	"time"
)

// Stamp is what a file looked like when a workspace was made. The change time is the kernel's own: a program cannot set it
// back, so an equal stamp means equal content. Stamps are compared with ==.
type Stamp struct {
	Size         int64
	Mtime, Ctime int64 // nanoseconds
	Inode        uint64
	Mode         fs.FileMode
}

// StampOf is the stamp of a file of this system.
func StampOf(info fs.FileInfo) Stamp {
	st := info.Sys().(*syscall.Stat_t) // Linux: always this type
	return Stamp{Size: info.Size(), Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Inode: st.Ino, Mode: info.Mode()}
}

// Tick is longer than the granularity of file times in the kernel (one timer tick, at most 10 ms). A file changed in the
// same tick would keep its stamp, so whoever takes stamps of what was just written waits for the next.
const Tick = 12 * time.Millisecond
