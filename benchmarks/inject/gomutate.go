package inject

import (
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// goMutants lists what may be done to Go files, as mutate.py does for Python: by syntax tree and exact position, inside
// functions alone. A file with a mutant is formatted as gofmt would have it and compiles as far as the type checker can
// tell; nothing is run.
func goMutants(cfg Config, sources map[string]string) ([]mutant, error) {
	types, err := newGoChecker(sources)
	if err != nil {
		return nil, milepost.E("inject: list faults", milepost.KindInvalid, "%s: %w", cfg.Package, err)
	}
	var out []mutant
	for _, p := range slices.Sorted(maps.Keys(sources)) {
		f := &goFinder{path: p, text: sources[p], fset: types.fset, families: cfg.Families, file: types.files[p]}
		f.formatted = isFormatted(f.text)
		for _, d := range f.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				f.walk(fn)
			}
		}
		slices.SortStableFunc(f.found, func(a, b mutant) int { return a.Start - b.Start })
		for _, m := range f.found {
			if types.compiles(m, sources) {
				out = append(out, m)
			}
		}
	}
	return out, nil
}

func isFormatted(text string) bool {
	b, err := format.Source([]byte(text))
	return err == nil && string(b) == text
}

// goFinder collects the mutants of one file.
type goFinder struct {
	path, text string
	fset       *token.FileSet
	file       *ast.File
	formatted  bool // the healthy file is as gofmt has it
	families   []string
	function   string
	found      []mutant
}

func (f *goFinder) at(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *goFinder) of(n ast.Node) string { return f.text[f.at(n.Pos()):f.at(n.End())] }

// add keeps a mutant if the file still parses with it and is formatted no worse.
func (f *goFinder) add(family, kind string, start, end int, text string) {
	if !slices.Contains(f.families, family) || f.text[start:end] == text {
		return
	}
	m := mutant{Path: f.path, Function: f.function, Family: family, Kind: kind, Line: strings.Count(f.text[:start], "\n") + 1,
		Start: start, End: end, Old: f.text[start:end], New: text}
	changed := m.apply(f.text)
	if _, err := parser.ParseFile(token.NewFileSet(), f.path, changed, parser.SkipObjectResolution); err != nil {
		return
	}
	if !f.formatted || isFormatted(changed) {
		f.found = append(f.found, m)
	}
}

// replace puts a text in the place of a node.
func (f *goFinder) replace(family, kind string, n ast.Node, text string) {
	f.add(family, kind, f.at(n.Pos()), f.at(n.End()), text)
}

func (f *goFinder) walk(fn *ast.FuncDecl) {
	f.function = fn.Name.Name
	if fn.Recv != nil && len(fn.Recv.List) == 1 {
		f.function = strings.TrimPrefix(f.of(fn.Recv.List[0].Type), "*") + "." + fn.Name.Name
	}
	next := similar(fn)
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.BasicLit:
			f.literal(n)
		case *ast.Ident:
			f.name(n, next)
		case *ast.CallExpr:
			if len(n.Args) >= 2 {
				f.swap(n.Args[0], n.Args[1])
			}
		case *ast.IndexExpr:
			f.index(n.Index)
		case *ast.SliceExpr:
			for _, bound := range []ast.Expr{n.Low, n.High} {
				f.index(bound)
			}
		case *ast.ReturnStmt:
			f.lostError(n)
		case *ast.IfStmt:
			f.condition(n)
		case *ast.BlockStmt:
			f.block(n.List)
		case *ast.CaseClause:
			f.block(n.Body)
		}
		return true
	})
}

// goOperators and goBoundaries are what an operator becomes.
var (
	goOperators = map[token.Token]token.Token{token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL, token.REM: token.QUO,
		token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.GTR, token.GTR: token.LSS, token.LEQ: token.GEQ, token.GEQ: token.LEQ,
		token.LAND: token.LOR, token.LOR: token.LAND, token.AND: token.OR, token.OR: token.AND, token.SHL: token.SHR, token.SHR: token.SHL}
	goBoundaries = map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}
	goOrdered    = []token.Token{token.SUB, token.QUO, token.REM}
)

func (f *goFinder) binary(n *ast.BinaryExpr) {
	at := f.at(n.OpPos)
	if op, ok := goOperators[n.Op]; ok {
		f.add("operator", kindOfOperator(n.Op), at, at+len(n.Op.String()), op.String())
	}
	if op, ok := goBoundaries[n.Op]; ok {
		f.add("off_by_one", "boundary", at, at+len(n.Op.String()), op.String())
	}
	if slices.Contains(goOrdered, n.Op) {
		f.swap(n.X, n.Y)
	}
	if left, ok := n.X.(*ast.BinaryExpr); ok && left.Op.Precedence() == n.Op.Precedence() {
		kind := "operand"
		if n.Op == token.LAND || n.Op == token.LOR {
			kind = "condition"
		}
		f.add("chain", kind, f.at(n.X.End()), f.at(n.End()), "")
	} else if n.Op == token.LAND || n.Op == token.LOR {
		f.add("chain", "condition", f.at(n.X.End()), f.at(n.End()), "")
	}
}

func kindOfOperator(op token.Token) string {
	switch {
	case op == token.LAND || op == token.LOR:
		return "boolean"
	case op.Precedence() == 3:
		return "comparison"
	}
	return "arithmetic"
}

func (f *goFinder) literal(n *ast.BasicLit) {
	if v, err := strconv.Atoi(n.Value); n.Kind == token.INT && err == nil && v < 1000 {
		f.replace("constant", "number", n, strconv.Itoa(v+2))
	}
}

// name flips truths and takes another parameter of the same type for this one.
func (f *goFinder) name(n *ast.Ident, next map[string]string) {
	switch n.Name {
	case "true":
		f.replace("constant", "truth", n, "false")
	case "false":
		f.replace("constant", "truth", n, "true")
	default:
		if other := next[n.Name]; other != "" {
			f.replace("variable", "name", n, other)
		}
	}
}

// similar maps each parameter of a function to the next one of the same type.
func similar(fn *ast.FuncDecl) map[string]string {
	by := map[string][]string{}
	for _, field := range fn.Type.Params.List {
		for _, n := range field.Names {
			if n.Name != "_" {
				key := types.ExprString(field.Type)
				by[key] = append(by[key], n.Name)
			}
		}
	}
	out := map[string]string{}
	for _, names := range by {
		for i, n := range names {
			if len(names) > 1 {
				out[n] = names[(i+1)%len(names)]
			}
		}
	}
	return out
}

// index moves a constant index or bound.
func (f *goFinder) index(e ast.Expr) {
	if n, ok := e.(*ast.BasicLit); ok && n.Kind == token.INT {
		if v, err := strconv.Atoi(n.Value); err == nil {
			f.replace("off_by_one", "index", n, strconv.Itoa(v+1))
		}
	}
}

// swap exchanges two plain expressions that stand in a row.
func (f *goFinder) swap(a, b ast.Expr) {
	plain := func(e ast.Expr) bool {
		switch e.(type) {
		case *ast.Ident, *ast.SelectorExpr, *ast.BasicLit, *ast.CallExpr, *ast.IndexExpr:
			return true
		}
		return false
	}
	if plain(a) && plain(b) {
		between := f.text[f.at(a.End()):f.at(b.Pos())]
		f.add("swapped", "arguments", f.at(a.Pos()), f.at(b.End()), f.of(b)+between+f.of(a))
	}
}

// lostError returns no error where there is one.
func (f *goFinder) lostError(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		return
	}
	last := n.Results[len(n.Results)-1]
	switch e := last.(type) {
	case *ast.Ident:
		if e.Name == "err" || strings.HasPrefix(e.Name, "Err") {
			f.replace("exception", "lost", last, "nil")
		}
	case *ast.CallExpr:
		if name := f.of(e.Fun); name == "errors.New" || name == "fmt.Errorf" {
			f.replace("exception", "lost", last, "nil")
		}
	}
}

func (f *goFinder) condition(n *ast.IfStmt) {
	switch c := n.Cond.(type) {
	case *ast.UnaryExpr:
		if c.Op == token.NOT {
			f.replace("guard", "inverted", c, f.of(c.X))
		}
	case *ast.Ident, *ast.CallExpr, *ast.SelectorExpr:
		f.replace("guard", "inverted", n.Cond, "!"+f.of(n.Cond))
	}
	if other, ok := n.Else.(*ast.BlockStmt); ok {
		between := f.text[f.at(n.Body.End()):f.at(other.Pos())]
		f.add("branch", "exchanged", f.at(n.Body.Pos()), f.at(other.End()), f.of(other)+between+f.of(n.Body))
	}
}

// block takes statements out and exchanges neighbours.
func (f *goFinder) block(list []ast.Stmt) {
	for i, s := range list {
		switch s := s.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			f.drop("removed", "loop", s)
		case *ast.IfStmt:
			if s.Else == nil && len(s.Body.List) == 1 && leaves(s.Body.List[0]) {
				f.drop("guard", "removed", s)
			} else {
				f.drop("removed", "conditional", s)
			}
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				f.drop("removed", "assignment", s)
			}
		case *ast.IncDecStmt:
			f.drop("removed", "assignment", s)
		case *ast.ExprStmt:
			f.drop("removed", "call", s)
		case *ast.DeferStmt:
			f.drop("removed", "wrapper", s)
		}
		if i+1 < len(list) && simple(s) && simple(list[i+1]) {
			next := list[i+1]
			between := f.text[f.at(s.End()):f.at(next.Pos())]
			if strings.TrimSpace(between) == "" {
				f.add("order", "statements", f.at(s.Pos()), f.at(next.End()), f.of(next)+between+f.of(s))
			}
		}
	}
}

func leaves(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	}
	return false
}

func simple(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.AssignStmt, *ast.IncDecStmt, *ast.ExprStmt:
		return true
	}
	return false
}

// drop takes a statement out with its lines, which it must have for itself.
func (f *goFinder) drop(family, kind string, s ast.Stmt) {
	start, end := f.at(s.Pos()), f.at(s.End())
	from := strings.LastIndexByte(f.text[:start], '\n') + 1
	to := strings.IndexByte(f.text[end:], '\n')
	if to < 0 || strings.TrimSpace(f.text[from:start]) != "" || strings.TrimSpace(f.text[end:end+to]) != "" {
		return
	}
	f.add(family, kind, from, end+to+1, "")
}

// goChecker type-checks packages of the sources with a mutant in place. What the healthy package already lacks, such as an
// import that cannot be resolved here, counts for nothing.
type goChecker struct {
	fset   *token.FileSet
	files  map[string]*ast.File
	own    types.Importer
	faults map[string]int // of the healthy package, by folder
}

func newGoChecker(sources map[string]string) (*goChecker, error) {
	c := &goChecker{fset: token.NewFileSet(), files: map[string]*ast.File{}, faults: map[string]int{}}
	c.own = importer.ForCompiler(c.fset, "source", nil)
	for p, text := range sources {
		f, err := parser.ParseFile(c.fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		c.files[p] = f
	}
	for p := range sources {
		if dir := path.Dir(p); c.faults[dir] == 0 {
			c.faults[dir] = c.check(dir, "", nil)
		}
	}
	return c, nil
}

// check counts the faults of a package, with one file replaced.
func (c *goChecker) check(dir, replaced string, by *ast.File) int {
	var files []*ast.File
	for _, p := range slices.Sorted(maps.Keys(c.files)) {
		switch {
		case p == replaced:
			files = append(files, by)
		case path.Dir(p) == dir:
			files = append(files, c.files[p])
		}
	}
	n := 0
	cfg := types.Config{Importer: c.own, FakeImportC: true, Error: func(error) { n++ }}
	_, _ = cfg.Check(dir, c.fset, files, nil) // the errors are counted
	return n
}

func (c *goChecker) compiles(m mutant, sources map[string]string) bool {
	f, err := parser.ParseFile(c.fset, m.Path, m.apply(sources[m.Path]), parser.SkipObjectResolution)
	return err == nil && c.check(path.Dir(m.Path), m.Path, f) <= c.faults[path.Dir(m.Path)]
}
