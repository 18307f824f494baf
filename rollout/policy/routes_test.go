package policy

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
)

// routeOf is what the fake routes a token at a place of the whole sequence to: one layer of two experts.
func routeOf(id int32, at int) [2]byte { return [2]byte{byte(id % 127), 128 + byte(at%121)} }

// fakeRoutes are the routes of all tokens from the given one to the last but one, a NumPy array file in base64.
func fakeRoutes(ids []int32, from int) string {
	var body []byte
	for at := from; at < len(ids)-1; at++ {
		r := routeOf(ids[at], at)
		body = append(body, r[:]...)
	}
	header := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 1, 2), }", len(body)/2)
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	file := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header)))
	return base64.StdEncoding.EncodeToString(append(append(file, header...), body...))
}

// checkRoutes proves that the routes of a sample are those of its tokens, each at its own place, up to the last sampled one.
func checkRoutes(s milepost.Sample) error {
	last := 0
	for at, step := range s.Steps {
		if step >= 0 {
			last = at
		}
	}
	if n := s.Routes.Tokens(); n != last {
		return fmt.Errorf("routes of %d tokens, the last sampled one is %d", n, last)
	}
	for at := range last {
		if want := routeOf(s.Tokens[at], at); string(s.Routes.IDs[2*at:2*at+2]) != string(want[:]) {
			return fmt.Errorf("token %d is routed to %v, want %v", at, s.Routes.IDs[2*at:2*at+2], want)
		}
	}
	return nil
}
