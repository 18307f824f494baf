package benchmarks

import (
	"bytes"
	"strconv"
)

// LoneSurrogate finds a \u escape in JSON text that is half of a surrogate pair, which no UTF-8 text can hold: Python
// writes bytes so that it could not decode, and encoding/json makes another character of it without a word. at is its
// place in the text, or -1.
func LoneSurrogate(text []byte) (at int) {
	for i := 0; ; {
		j := bytes.IndexByte(text[i:], '\\')
		if j < 0 {
			return -1
		}
		i += j
		switch unit := escaped(text[i:]); {
		case unit < 0:
			i += 2 // a backslash and what it escapes
		case unit < 0xd800 || unit >= 0xe000:
			i += 6
		case unit >= 0xdc00:
			return i
		default:
			if low := escaped(text[i+6:]); low < 0xdc00 || low >= 0xe000 {
				return i
			}
			i += 12
		}
		if i >= len(text) {
			return -1
		}
	}
}

// escaped is the code unit of a \u escape at the beginning of a text, -1 where there is none.
func escaped(text []byte) int64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(unit)
}
