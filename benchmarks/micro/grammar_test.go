package micro

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// everyFunction is each form with each constant, as the position-th function of a file.
func everyFunction(position int) []Function {
	var out []Function
	for i := range forms {
		f := &forms[i]
		lo, hi := f.lo, f.hi
		if hi < lo {
			lo, hi = 0, 0
		}
		for k := lo; k <= hi; k++ {
			out = append(out, f.function("fee", paramNames[f.shape][position], k))
		}
	}
	return out
}

func TestDocstringDecidesTheFunction(t *testing.T) {
	docs := map[string]bool{}
	for position := range maxFunctions {
		for _, want := range everyFunction(position) {
			if docs[want.Doc] {
				t.Errorf("two functions say %q", want.Doc)
			}
			docs[want.Doc] = true
			got, ok := Read("fee", want.Doc)
			if !ok || got.Right() != want.Right() || fmt.Sprint(got.Wrong()) != fmt.Sprint(want.Wrong()) {
				t.Errorf("Read(%q) = %q %v, want %q %v", want.Doc, got.Right(), got.Wrong(), want.Right(), want.Wrong())
			}
			if len(want.Wrong()) < 3 {
				t.Errorf("%q has only %d wrong bodies", want.Doc, len(want.Wrong()))
			}
		}
	}
	for _, doc := range []string{"", "x plus.", "x plus 7", "a over b, or 3 if a is 0.", "x plus 7. x plus 7."} {
		if fn, ok := Read("fee", doc); ok {
			t.Errorf("Read(%q) = %q, want nothing", doc, fn.Right())
		}
	}
}

// TestValuesAreWhatPythonComputes runs every body of the grammar on every input of its pool in a Python process.
func TestValuesAreWhatPythonComputes(t *testing.T) {
	type query struct {
		Params, Expr, Args string
	}
	var queries []query
	var want []string
	for _, fn := range everyFunction(1) {
		for _, v := range append([]variant{fn.right}, fn.wrong...) {
			for _, in := range fn.pool {
				queries = append(queries, query{strings.Join(fn.Params, ", "), v.expr, in.String()})
				want = append(want, v.eval(in).text)
			}
		}
	}
	in, err := json.Marshal(queries)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-c", `
import json, sys
out = []
for q in json.load(sys.stdin):
    f = eval("lambda %s: %s" % (q["Params"], q["Expr"]))
    try:
        out.append(repr(eval("f(%s)" % q["Args"])))
    except Exception as e:
        out.append(type(e).__name__)
print(json.dumps(out))`)
	cmd.Stdin = bytes.NewReader(in)
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("return %s of (%s) with (%s): Python says %s, the grammar %s", queries[i].Expr, queries[i].Params, queries[i].Args, got[i], want[i])
		}
	}
	t.Logf("%d calls", len(want))
}
