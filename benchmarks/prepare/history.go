package prepare

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/repo"
)

// BasesFolder is the name of the bare git repository, in the folder of a task set, that holds the bases of its tasks: a
// commit without parent for each, referred to as refs/bases/<tree id>. Equal files are there once.
const BasesFolder = "bases.git"

// identity of every base commit: those of env/repo's checkouts, so that an agent's HEAD is the task's base commit.
const identity = "base <base@localhost> 946684800 +0000"

// history is the repository of bases. Its methods may be called concurrently.
type history struct {
	dir string

	mu   sync.Mutex
	next int
}

func openHistory(ctx context.Context, dir string) (*history, error) {
	h := &history{dir: dir}
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); err == nil {
		return h, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, milepost.Wrap("prepare: open bases", milepost.KindUnavailable, err)
	}
	_, err := h.git(ctx, nil, "init", "-q", "--bare", "--template=", "--object-format=sha1", "--initial-branch=main")
	return h, err
}

// git runs git on the repository, with nothing of the user's configuration.
func (h *history) git(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := repo.Git(ctx, append([]string{"-c", "core.logAllRefUpdates=false", "--git-dir=" + h.dir}, args...)...)
	cmd.Stdin = stdin
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", milepost.E("prepare: git", milepost.KindUnavailable, "git %s: %w: %s", args[0], err, strings.TrimSpace(words.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// add commits the files and links of a tar stream that fill writes, and returns the ids of commit and tree.
func (h *history) add(ctx context.Context, fill func(io.Writer) error) (commit, tree string, err error) {
	h.mu.Lock()
	h.next++
	ref := fmt.Sprintf("refs/making/%d-%d", os.Getpid(), h.next)
	h.mu.Unlock()
	archive, archiveIn := io.Pipe()
	orders, ordersIn := io.Pipe()
	go func() { _ = archiveIn.CloseWithError(fill(archiveIn)) }() // never fails
	converted := make(chan error, 1)
	go func() {
		err := fastImport(ordersIn, archive, ref)
		_ = archive.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // never fails, and ends fill
		_ = ordersIn.CloseWithError(err)
		converted <- err
	}()
	_, err = h.git(ctx, orders, "fast-import", "--quiet", "--done")
	_ = orders.CloseWithError(io.ErrClosedPipe)
	if convertErr := <-converted; convertErr != nil && !errors.Is(convertErr, io.ErrClosedPipe) {
		err = convertErr // git only saw that its input broke off
	}
	if err != nil {
		return "", "", err
	}
	ids, err := h.git(ctx, nil, "rev-parse", ref, ref+"^{tree}")
	if err != nil {
		return "", "", err
	}
	commit, tree, _ = strings.Cut(ids, "\n")
	if _, err := h.git(ctx, nil, "update-ref", "refs/bases/"+tree, commit); err != nil {
		return "", "", err
	}
	_, err = h.git(ctx, nil, "update-ref", "-d", ref)
	return commit, tree, err
}

// fastImport turns a tar stream into orders for git fast-import.
func fastImport(to io.Writer, from io.Reader, ref string) error {
	w := bufio.NewWriterSize(to, 256<<10)
	fmt.Fprintf(w, "commit %s\nauthor %s\ncommitter %s\ndata 5\nbase\n\ndeleteall\n", ref, identity, identity)
	tr := tar.NewReader(from)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			fmt.Fprintf(w, "M %o inline %s\ndata %d\n", dirfs.GitMode(h.FileInfo().Mode()), quoted(h.Name), h.Size)
			if _, err := io.Copy(w, tr); err != nil {
				return err
			}
		case tar.TypeSymlink:
			fmt.Fprintf(w, "M 120000 inline %s\ndata %d\n%s", quoted(h.Name), len(h.Linkname), h.Linkname)
		default:
			continue // directories follow from files
		}
		fmt.Fprintln(w)
	}
	if _, err := io.Copy(io.Discard, from); err != nil { // the archive's padding; an error means that it is not whole
		return err
	}
	fmt.Fprint(w, "\ndone\n")
	return w.Flush()
}

// quoted is a path for fast-import.
func quoted(p string) string {
	if !strings.ContainsAny(p, "\"\n") && !strings.HasPrefix(p, " ") {
		return p
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(p) + `"`
}
