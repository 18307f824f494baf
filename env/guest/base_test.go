package guest

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
)

// TestHostileFetched reads streams as a container that was taken over could send them.
func TestHostileFetched(t *testing.T) {
	pack := func(headers ...tar.Header) []byte {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	file := func(name string, size int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o755}
	}
	asked := map[string]bool{"a": true, "b": true}
	for name, c := range map[string]struct {
		stream []byte
		words  string
	}{
		"not asked for":    {pack(file("c", 1)), `"c" was not asked for`},
		"parent":           {pack(file("../a", 1)), "was not asked for"},
		"absolute":         {pack(file("/etc/passwd", 1)), "was not asked for"},
		"device":           {pack(tar.Header{Typeflag: tar.TypeChar, Name: "a"}), "of type"},
		"hard link":        {pack(tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/shadow"}), "of type"},
		"too large":        {pack(file("a", 101)), "larger than the limit"},
		"too large in all": {pack(file("a", 60), file("b", 60)), "larger than the limit"},
		"cut off":          {pack(file("a", 60))[:530], "unexpected EOF"},
	} {
		if got, err := unpackFetched(bytes.NewReader(c.stream), asked, 100); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v %v, want an error with %q", name, got, err, c.words)
		}
	}
	got, err := unpackFetched(bytes.NewReader(pack(file("a", 3), tar.Header{Typeflag: tar.TypeSymlink, Name: "b", Linkname: "/etc"})), asked, 100)
	if err != nil || got["a"].mode != 0o100755 || len(got["a"].data) != 3 || got["b"].mode != 0o120000 || string(got["b"].data) != "/etc" {
		t.Errorf("a good stream: %+v %v", got, err)
	}
}
