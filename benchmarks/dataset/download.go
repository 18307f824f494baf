package dataset

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// download brings one file to path: what an earlier attempt left in path.part is continued, size and hash are checked,
// then it is renamed into place. A part whose hash is wrong is thrown away, so that the next attempt starts afresh.
func (h *Hub) download(ctx context.Context, address, path string, want hubFile) error {
	const op = "dataset: download"
	part := path + ".part"
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer file.Close()
	have, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if have > want.size() {
		have = 0
	}
	if have < want.size() || have == 0 {
		if err := h.fill(ctx, address, file, have, want); err != nil {
			return err
		}
	}
	sum, err := hashOf(file, want)
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if sum != want.hash() {
		_ = os.Remove(part)
		return milepost.E(op, milepost.KindCorrupt, "%s: hash %s, the hub's listing says %s; the download was thrown away", address, sum, want.hash())
	}
	if err := errors.Join(file.Sync(), os.Rename(part, path)); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return nil
}

// fill appends to the file from byte have on, or from its beginning where the server does not continue.
func (h *Hub) fill(ctx context.Context, address string, file *os.File, have int64, want hubFile) error {
	const op = "dataset: download"
	resp, err := h.send(ctx, address, have)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusPartialContent && !continues(resp, have) {
		return errors.Join(file.Truncate(0), milepost.E(op, milepost.KindUnavailable, "%s: asked from byte %d, was given %q", address, have, resp.Header.Get("Content-Range")))
	}
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return errors.Join(file.Truncate(0), milepost.E(op, milepost.KindUnavailable, "%s: has no byte %d", address, have))
	}
	if resp.StatusCode == http.StatusOK {
		have = 0
	}
	if err := file.Truncate(have); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if _, err := file.Seek(have, io.SeekStart); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	n, err := io.Copy(file, io.LimitReader(resp.Body, want.size()-have+1))
	if err != nil {
		return milepost.E(op, milepost.KindUnavailable, "%s: broke off behind byte %d: %w", address, have+n, err)
	}
	if have+n != want.size() {
		return milepost.E(op, milepost.KindUnavailable, "%s: %d bytes, the hub's listing says %d", address, have+n, want.size())
	}
	return nil
}

// continues reports whether a partial answer begins at the byte that was asked for.
func continues(resp *http.Response, from int64) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(from, 10)+"-")
}

// hash is what the content's hash must be: SHA-256 for files in large file storage, else git's blob id.
func (f hubFile) hash() string {
	if f.LFS != nil {
		return f.LFS.OID
	}
	return f.OID
}

func hashOf(file *os.File, f hubFile) (string, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	var h hash.Hash
	if f.LFS != nil {
		h = sha256.New()
	} else {
		h = sha1.New()
		fmt.Fprintf(h, "blob %d\x00", f.Size)
	}
	_, err := io.Copy(h, file)
	return hex.EncodeToString(h.Sum(nil)), err
}
