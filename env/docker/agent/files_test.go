package agent

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/driver"
)

// workspace makes a server on a directory beside a file that must stay as it is.
func workspace(t *testing.T) (s *server, outside string) {
	t.Helper()
	dir := t.TempDir()
	outside = filepath.Join(dir, "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("untouched"), 0o644), os.Mkdir(filepath.Join(dir, "ws"), 0o755)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "ws"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		root.Close()
		if b, err := os.ReadFile(outside); err != nil || string(b) != "untouched" {
			t.Errorf("the file outside: %q %v", b, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("outside the workspace: %v %v", entries, err)
		}
	})
	return &server{root: root, files: dirfs.New(root), index: index{}}, outside
}

type entry struct {
	kind             byte
	name, link, text string
}

func pack(t *testing.T, entries ...entry) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Size: int64(len(e.text)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// TestHostileTar unpacks streams that try to leave the workspace.
func TestHostileTar(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		want    error // nil: any
	}{
		"parent":            {[]entry{{tar.TypeReg, "../outside", "", "x"}}, driver.ErrEscapes},
		"parent, deeper":    {[]entry{{tar.TypeReg, "a/../../outside", "", "x"}}, driver.ErrEscapes},
		"absolute":          {[]entry{{tar.TypeReg, "/outside", "", "x"}}, driver.ErrEscapes},
		"through a link":    {[]entry{{tar.TypeSymlink, "l", "..", ""}, {tar.TypeReg, "l/outside", "", "x"}}, driver.ErrEscapes},
		"over a link":       {[]entry{{tar.TypeSymlink, "l", "../outside", ""}, {tar.TypeReg, "l", "", "x"}}, fs.ErrExist},
		"absolute link":     {[]entry{{tar.TypeSymlink, "l", "/tmp", ""}, {tar.TypeDir, "l/d", "", ""}}, driver.ErrEscapes},
		"directory outside": {[]entry{{tar.TypeDir, "../d", "", ""}}, driver.ErrEscapes},
		"link outside":      {[]entry{{tar.TypeSymlink, "../l", "x", ""}}, driver.ErrEscapes},
		"hard link":         {[]entry{{tar.TypeLink, "h", "../outside", ""}}, driver.ErrInvalid},
		"device":            {[]entry{{tar.TypeChar, "null", "", ""}}, driver.ErrInvalid},
		"pipe":              {[]entry{{tar.TypeFifo, "p", "", ""}}, driver.ErrInvalid},
		"file twice":        {[]entry{{tar.TypeReg, "f", "", "1"}, {tar.TypeReg, "f", "", "2"}}, fs.ErrExist},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := workspace(t)
			if err := s.unpack(pack(t, c.entries...)); !errors.Is(err, c.want) {
				t.Errorf("unpack: %v, want %v", err, c.want)
			}
		})
	}
	s, _ := workspace(t)
	if err := s.unpack(bytes.NewReader(pack(t, entry{tar.TypeReg, "f", "", "text"}).Bytes()[:514])); err == nil {
		t.Error("a stream that was cut off is unpacked")
	}
}

func TestUnpackAndChanged(t *testing.T) {
	s, outside := workspace(t)
	odd := "n\xff\n\""
	base := []entry{{tar.TypeDir, "d", "", ""}, {tar.TypeReg, "d/f", "", "one"}, {tar.TypeReg, odd, "", "odd"}, {tar.TypeSymlink, "l", outside, ""}}
	for range 2 { // the second time over what is there
		if err := s.unpack(pack(t, base...)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.changed(); err != nil || len(got) != 0 {
			t.Fatalf("right after unpacking: %v %v", got, err)
		}
	}
	write := func(name, text string) {
		if err := s.files.WriteFile(name, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("d/f", "two")
	write(odd, "odd") // the same again
	write("new", "")
	if err := s.root.Remove("l"); err != nil {
		t.Fatal(err)
	}
	got, err := s.changed()
	var lines []string
	for _, e := range got {
		line := string(e.Path)
		if e.Deleted {
			line += " deleted"
		}
		lines = append(lines, line)
	}
	if want := "d/f|l deleted|new"; err != nil || strings.Join(lines, "|") != want {
		t.Errorf("changed: %q %v, want %s", lines, err, want)
	}
}
