package micro

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Family is a sort of fault.
type Family string

// The families of faults.
const (
	Operator Family = "operator"   // another operator, or min for max
	Constant Family = "constant"   // another number
	OffByOne Family = "off_by_one" // one too many or too few, < for <=
	Swapped  Family = "swapped"    // arguments in the wrong order
	Guard    Family = "guard"      // the special case is not handled
)

// Families are all families, in the order in which configuration lists them.
var Families = []Family{Operator, Constant, OffByOne, Swapped, Guard}

// args are the arguments of one call: integers, or one list.
type args struct {
	ints []int
	list []int
	seq  bool
}

// String renders the arguments as in a Python call, without the parentheses.
func (a args) String() string {
	if a.seq {
		return listText(a.list)
	}
	parts := make([]string, len(a.ints))
	for i, n := range a.ints {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ", ")
}

// value is what a call comes to: the Python repr of its result, or the name of the exception.
type value struct {
	text   string
	raised bool
}

// variant is one way to write the body: the expression after return, what it computes, and, for a wrong one, its family.
type variant struct {
	expr   string
	family Family
	eval   func(args) value
}

// Function is one function of a micro repository as its docstring defines it.
type Function struct {
	Name   string
	Params []string
	Doc    string // the docstring: it fixes right
	right  variant
	wrong  []variant // diverse wrong bodies, every one different from right for some input of pool
	pool   []args    // inputs that tests are drawn from
}

// form is one shape of function: shape says what it takes, doc reads the docstring back, build makes the function.
type form struct {
	shape shape
	doc   *regexp.Regexp // groups a, b and k, as far as the text has them
	text  string         // docstring with {a}, {b} and {k}
	lo    int            // least and greatest constant; hi < lo: the form has none
	hi    int
	build func(a, b string, k int) (right variant, wrong []variant)
	pool  func(k int) []args
}

// shape is the signature of a form.
type shape int

const (
	oneNumber  shape = iota // one number
	twoNumbers              // two numbers
	oneList                 // one list of numbers
)

// names of parameters: the i-th function of a file takes the i-th, so no two lines of a file can ever be equal and
// every edit of a line has a unique match.
var paramNames = map[shape][][]string{
	oneNumber:  {{"x"}, {"n"}, {"v"}, {"w"}},
	twoNumbers: {{"a", "b"}, {"p", "q"}, {"c", "d"}, {"i", "j"}},
	oneList:    {{"s"}, {"t"}, {"u"}, {"r"}},
}

// maxFunctions is how many functions a file can have: one for each set of parameter names.
const maxFunctions = 4

// function builds the function of this form with the given name, parameters and constant.
func (f *form) function(name string, params []string, k int) Function {
	a, b := params[0], ""
	if len(params) > 1 {
		b = params[1]
	}
	doc := strings.NewReplacer("{a}", a, "{b}", b, "{k}", strconv.Itoa(k)).Replace(f.text)
	right, all := f.build(a, b, k)
	fn := Function{Name: name, Params: params, Doc: doc, right: right, pool: f.pool(k)}
	seen := map[string]bool{right.expr: true}
	for _, w := range all {
		if seen[w.expr] || !fn.differs(w) {
			continue
		}
		seen[w.expr] = true
		fn.wrong = append(fn.wrong, w)
	}
	return fn
}

// differs reports whether some input tells the variant from the right body.
func (fn *Function) differs(w variant) bool {
	for _, in := range fn.pool {
		if w.eval(in) != fn.right.eval(in) {
			return true
		}
	}
	return false
}

// Right is the right body line, without indentation: "return x + 7".
func (fn *Function) Right() string { return "return " + fn.right.expr }

// Wrong are the wrong body lines, without indentation, in the order of the grammar.
func (fn *Function) Wrong() []string {
	out := make([]string, len(fn.wrong))
	for i, w := range fn.wrong {
		out[i] = "return " + w.expr
	}
	return out
}

// Read finds the function that a docstring defines: how the scripted expert, who knows the grammar, comes from the
// text of a file to the right line. It is false where the docstring is not of the grammar.
func Read(name, doc string) (Function, bool) {
	for i := range forms {
		f := &forms[i]
		m := f.doc.FindStringSubmatch(doc)
		if m == nil {
			continue
		}
		params := []string{m[f.doc.SubexpIndex("a")]}
		if f.shape == twoNumbers {
			params = append(params, m[f.doc.SubexpIndex("b")])
		}
		k := 0
		if f.hi >= f.lo {
			k, _ = strconv.Atoi(m[f.doc.SubexpIndex("k")])
		}
		fn := f.function(name, params, k)
		if fn.Doc == doc {
			return fn, true
		}
	}
	return Function{}, false
}

// docPattern turns a docstring text into the expression that reads it back. The second mention of a parameter is
// matched loosely; Read compares the whole text afterwards.
func docPattern(text string) *regexp.Regexp {
	p := regexp.QuoteMeta(text)
	for name, class := range map[string]string{"a": `[a-z]`, "b": `[a-z]`, "k": `\d+`} {
		hole := regexp.QuoteMeta("{" + name + "}")
		p = strings.Replace(p, hole, "(?P<"+name+">"+class+")", 1)
		p = strings.ReplaceAll(p, hole, class)
	}
	return regexp.MustCompile("^" + p + "$")
}

func num(n int) value {
	return value{text: strconv.Itoa(n)}
}

func truth(b bool) value {
	if b {
		return value{text: "True"}
	}
	return value{text: "False"}
}

func raise(name string) value { return value{text: name, raised: true} }

func listText(s []int) string {
	return strings.ReplaceAll(fmt.Sprint(s), " ", ", ")
}
