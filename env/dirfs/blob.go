package dirfs

import (
	"crypto/sha1"
	"hash"
	"strconv"
)

// PageSize is the unit in which a tmpfs gives memory to files, in bytes.
const PageSize = 4096

// Pages is what a file of so many bytes takes there.
func Pages(size int64) int64 { return (size + PageSize - 1) / PageSize * PageSize }

// BlobHash returns a hash whose sum, once size bytes are written to it, is the git blob id of a file of that size.
func BlobHash(size int64) hash.Hash {
	h := sha1.New()
	_, _ = h.Write(append(strconv.AppendInt([]byte("blob "), size, 10), 0)) // a hash takes everything
	return h
}
