package micro

import (
	"fmt"
	"math/rand/v2"
)

// forms is the grammar. The order matters only to reproduce a seed. In a docstring {a} comes first, then {b}, then {k}.
var forms = []form{
	arithmetic("{a} plus {k}.", "+", 2, 9),
	arithmetic("{a} minus {k}.", "-", 2, 9),
	arithmetic("{a} times {k}.", "*", 2, 9),
	arithmetic("{a} over {k}.", "//", 2, 5),
	arithmetic("{a} mod {k}.", "%", 2, 7),
	comparison("{a} is over {k}.", ">"),
	comparison("{a} is at least {k}.", ">="),
	comparison("{a} is under {k}.", "<"),
	comparison("{a} is at most {k}.", "<="),
	bound("{a}, at most {k}.", "min"),
	bound("{a}, at least {k}.", "max"),
	sumTo("Sum of 0 to {a}."),
	pair("{a} minus {b}.", "-"),
	pair("{a} over {b}.", "//"),
	pair("{a} mod {b}.", "%"),
	guarded("{a} over {b}, or {k} if {b} is 0.", "//"),
	guarded("{a} mod {b}, or {k} if {b} is 0.", "%"),
	slice("First {k} of {a}.", true),
	slice("All but first {k} of {a}.", false),
	end("First of {a}, or {k} if empty.", 0),
	end("Last of {a}, or {k} if empty.", -1),
}

func init() {
	for i := range forms {
		forms[i].doc = docPattern(forms[i].text)
	}
}

// operate is integer arithmetic as Python has it; operands are never negative except as results.
func operate(op string, x, y int) value {
	switch op {
	case "+":
		return num(x + y)
	case "-":
		return num(x - y)
	case "*":
		return num(x * y)
	case "//", "%":
		if y == 0 {
			return raise("ZeroDivisionError")
		}
		if op == "%" {
			return num(x % y)
		}
		return num(x / y)
	case ">":
		return truth(x > y)
	case ">=":
		return truth(x >= y)
	case "<":
		return truth(x < y)
	case "<=":
		return truth(x <= y)
	}
	panic("micro: no operator " + op)
}

// constants are the numbers a wrong constant may be, nearest first.
func constants(k int) []int {
	var out []int
	for _, d := range []int{1, -1, 2, -2, 3} {
		if k+d >= 1 {
			out = append(out, k+d)
		}
	}
	return out
}

// withConstant is {a} op {k}.
func withConstant(a, op string, k int, fam Family) variant {
	return variant{fmt.Sprintf("%s %s %d", a, op, k), fam, func(in args) value { return operate(op, in.ints[0], k) }}
}

func arithmetic(text, op string, lo, hi int) form {
	return form{shape: oneNumber, text: text, lo: lo, hi: hi, pool: numbers,
		build: func(a, _ string, k int) (variant, []variant) {
			var wrong []variant
			for _, o := range []string{"+", "-", "*", "//", "%"} {
				wrong = append(wrong, withConstant(a, o, k, Operator))
			}
			for _, c := range constants(k) {
				wrong = append(wrong, withConstant(a, op, c, Constant))
			}
			return withConstant(a, op, k, ""), wrong
		}}
}

func comparison(text, op string) form {
	near := map[string]string{">": ">=", ">=": ">", "<": "<=", "<=": "<"}
	return form{shape: oneNumber, text: text, lo: 2, hi: 9, pool: numbers,
		build: func(a, _ string, k int) (variant, []variant) {
			wrong := []variant{withConstant(a, near[op], k, OffByOne)}
			for _, o := range []string{">", ">=", "<", "<="} {
				wrong = append(wrong, withConstant(a, o, k, Operator))
			}
			for _, c := range constants(k) {
				wrong = append(wrong, withConstant(a, op, c, Constant))
			}
			return withConstant(a, op, k, ""), wrong
		}}
}

func bound(text, fn string) form {
	write := func(a, fn string, k int, fam Family) variant {
		return variant{fmt.Sprintf("%s(%s, %d)", fn, a, k), fam, func(in args) value {
			if (fn == "min") == (in.ints[0] < k) {
				return num(in.ints[0])
			}
			return num(k)
		}}
	}
	return form{shape: oneNumber, text: text, lo: 2, hi: 9, pool: numbers,
		build: func(a, _ string, k int) (variant, []variant) {
			wrong := []variant{write(a, "min", k, Operator), write(a, "max", k, Operator)}
			for _, c := range constants(k) {
				wrong = append(wrong, write(a, fn, c, Constant))
			}
			return write(a, fn, k, ""), wrong
		}}
}

func sumTo(text string) form {
	write := func(a string, plus int, fam Family) variant {
		expr := fmt.Sprintf("sum(range(%s + %d))", a, plus)
		if plus == 0 {
			expr = fmt.Sprintf("sum(range(%s))", a)
		}
		return variant{expr, fam, func(in args) value {
			n := in.ints[0] + plus
			return num(n * (n - 1) / 2)
		}}
	}
	return form{shape: oneNumber, text: text, lo: 1, hi: 0,
		pool: func(int) []args { return numbers(4) },
		build: func(a, _ string, _ int) (variant, []variant) {
			return write(a, 1, ""), []variant{write(a, 0, OffByOne), write(a, 2, OffByOne), write(a, 3, Constant)}
		}}
}

// between is {a} op {b}; swap exchanges the two in text and meaning.
func between(a, op, b string, swap bool, fam Family) variant {
	x, y := 0, 1
	if swap {
		a, b, x, y = b, a, 1, 0
	}
	return variant{a + " " + op + " " + b, fam, func(in args) value { return operate(op, in.ints[x], in.ints[y]) }}
}

func pair(text, op string) form {
	return form{shape: twoNumbers, text: text, lo: 1, hi: 0,
		pool: func(int) []args { return pairs(1) },
		build: func(a, b string, _ int) (variant, []variant) {
			wrong := []variant{between(a, op, b, true, Swapped)}
			for _, o := range []string{"+", "-", "*", "//", "%"} {
				wrong = append(wrong, between(a, o, b, false, Operator))
			}
			return between(a, op, b, false, ""), wrong
		}}
}

// guarded is {a} op {b} with k in place of a division by zero.
func guarded(text, op string) form {
	guard := func(v variant, b string, k, at int, fam Family) variant {
		return variant{fmt.Sprintf("%s if %s else %d", v.expr, b, k), fam, func(in args) value {
			if in.ints[at] == 0 {
				return num(k)
			}
			return v.eval(in)
		}}
	}
	return form{shape: twoNumbers, text: text, lo: 0, hi: 9,
		pool: func(int) []args { return pairs(0) },
		build: func(a, b string, k int) (variant, []variant) {
			plain := between(a, op, b, false, "")
			wrong := []variant{
				between(a, op, b, false, Guard),
				guard(plain, a, k, 0, Guard),
				guard(between(a, op, b, true, ""), b, k, 1, Swapped),
			}
			for _, o := range []string{"//", "%", "*"} {
				wrong = append(wrong, guard(between(a, o, b, false, ""), b, k, 1, Operator))
			}
			for _, c := range constants(k) {
				wrong = append(wrong, guard(plain, b, c, 1, Constant))
			}
			return guard(plain, b, k, 1, ""), wrong
		}}
}

// slice is the first k elements of a list, or all the others.
func slice(text string, head bool) form {
	write := func(a string, k int, head bool, fam Family) variant {
		expr := fmt.Sprintf("%s[%d:]", a, k)
		if head {
			expr = fmt.Sprintf("%s[:%d]", a, k)
		}
		return variant{expr, fam, func(in args) value {
			cut := min(k, len(in.list))
			if head {
				return value{text: listText(in.list[:cut])}
			}
			return value{text: listText(in.list[cut:])}
		}}
	}
	return form{shape: oneList, text: text, lo: 2, hi: 3, pool: lists,
		build: func(a, _ string, k int) (variant, []variant) {
			return write(a, k, head, ""), []variant{
				write(a, k+1, head, OffByOne), write(a, k-1, head, OffByOne),
				write(a, k, !head, Operator), write(a, k+2, head, Constant),
			}
		}}
}

// end is the first (at 0) or last (at -1) element of a list, or k where it is empty.
func end(text string, at int) form {
	index := func(a string, at int, fam Family) variant {
		return variant{fmt.Sprintf("%s[%d]", a, at), fam, func(in args) value {
			i := at
			if i < 0 {
				i += len(in.list)
			}
			if i < 0 || i >= len(in.list) {
				return raise("IndexError")
			}
			return num(in.list[i])
		}}
	}
	guard := func(a string, at, k int, fam Family) variant {
		plain := index(a, at, "")
		return variant{fmt.Sprintf("%s if %s else %d", plain.expr, a, k), fam, func(in args) value {
			if len(in.list) == 0 {
				return num(k)
			}
			return plain.eval(in)
		}}
	}
	other, near := -1, 1
	if at == -1 {
		other, near = 0, -2
	}
	return form{shape: oneList, text: text, lo: 0, hi: 9, pool: lists,
		build: func(a, _ string, k int) (variant, []variant) {
			wrong := []variant{index(a, at, Guard), guard(a, near, k, OffByOne), guard(a, other, k, Operator)}
			for _, c := range constants(k) {
				wrong = append(wrong, guard(a, at, c, Constant))
			}
			return guard(a, at, k, ""), wrong
		}}
}

// numbers are the inputs of a form with constant k: those around k, where mistakes show, come first.
func numbers(k int) []args {
	seen := map[int]bool{}
	var out []args
	for _, n := range []int{k, k + 1, k - 1, k + 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12} {
		if n >= 0 && !seen[n] {
			seen[n] = true
			out = append(out, args{ints: []int{n}})
		}
	}
	return out
}

// pairs are two different numbers each, the second not under lo.
func pairs(lo int) []args {
	var out []args
	for a := 1; a <= 9; a++ {
		for b := lo; b <= 5; b++ {
			if a != b {
				out = append(out, args{ints: []int{a, b}})
			}
		}
	}
	if lo == 0 {
		out = append(out, args{ints: []int{0, 3}}, args{ints: []int{4, 0}}, args{ints: []int{7, 0}})
	}
	return out
}

// lists are short lists of different digits, from a fixed generator so that the grammar has no state.
func lists(int) []args {
	rng := rand.New(rand.NewPCG(11, 13))
	out := []args{{seq: true}, {seq: true, list: []int{7, 8}}}
	for _, n := range []int{2, 3, 3, 3, 4, 4, 4, 5} {
		out = append(out, args{seq: true, list: rng.Perm(9)[:n]})
	}
	return out
}
