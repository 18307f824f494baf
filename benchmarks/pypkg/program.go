package pypkg

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"

	milepost "github.com/milepost-rl/milepost"
)

// Ask runs a Python program, given as text, that reads a request from its standard input and writes an answer, both JSON.
// of names what is asked about, in errors of op: KindInvalid where the program fails, with its last lines, KindCanceled,
// KindInternal.
func Ask(ctx context.Context, op, of, python, program string, request, answer any) error {
	in, err := json.Marshal(request)
	if err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	cmd := exec.CommandContext(ctx, python, "-I", "-c", program)
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
	}
	if err != nil {
		return milepost.E(op, milepost.KindInvalid, "%s: %w: %s", of, err, LastLines(stderr.Bytes(), 3))
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return milepost.E(op, milepost.KindInternal, "%s: the program answered %.200q: %w", of, out, err)
	}
	return nil
}
