package messages

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
)

// SumHeader carries the SHA-256 of the body in hex: a damaged message is recognised even where it is still valid JSON.
const SumHeader = "Milepost-Sum"

// Headroom is what a message leaves of the server's limit for headers.
const Headroom = 4 << 10

// HashHex is the SHA-256 of b in hex.
func HashHex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Encode makes a message for subject with v as JSON body and its checksum.
func Encode(subject string, v any) (*nats.Msg, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, milepost.Wrap("messages: encode", milepost.KindInternal, err)
	}
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(SumHeader, HashHex(body))
	return m, nil
}

// Decode reads a body into v after checking sum and version: the version that the reader speaks. Errors: KindCorrupt.
func Decode(version int, h nats.Header, body []byte, v any) error {
	const op = "messages: decode"
	have, err := DecodeAny(h, body, v)
	if have != 0 && have != version {
		return milepost.E(op, milepost.KindCorrupt, "message version %d, this program speaks %d", have, version)
	}
	return err
}

// DecodeAny reads a body of whatever version, which it returns, 0 where the message is damaged. Errors: KindCorrupt.
func DecodeAny(h nats.Header, body []byte, v any) (version int, err error) {
	const op = "messages: decode"
	if got := h.Get(SumHeader); got != HashHex(body) {
		return 0, milepost.E(op, milepost.KindCorrupt, "checksum %q is not that of the %d bytes received", got, len(body))
	}
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return 0, milepost.E(op, milepost.KindCorrupt, "not JSON: %w", err)
	}
	if head.V < 1 {
		return 0, milepost.E(op, milepost.KindCorrupt, "no message version")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return head.V, milepost.E(op, milepost.KindCorrupt, "%w", err)
	}
	return head.V, nil
}

// SafeToken makes one subject token of s: s itself where it is made of letters, digits, - and _ and at most 64 long,
// otherwise "h" and a hash of it.
func SafeToken(s string) string {
	ok := s != "" && len(s) <= 64
	for _, c := range []byte(s) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if ok {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "h" + hex.EncodeToString(sum[:12])
}
