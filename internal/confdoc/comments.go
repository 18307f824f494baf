package confdoc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// Source finds the comments of struct fields in the source of one module.
type Source struct {
	module string // import path of the module
	root   string // its directory

	packages map[string]map[string]string // import path → "Type.Field" → comment
}

// NewSource reads packages of the module, which lies in the directory root, as they are asked for.
func NewSource(module, root string) *Source {
	return &Source{module: module, root: root, packages: map[string]map[string]string{}}
}

// comment is what the source says of a field: the lines above it, else those behind it; in one line, and "" where it
// says nothing. A name of the field at its beginning is replaced by its YAML name.
func (s *Source) comment(owner reflect.Type, f reflect.StructField) (string, error) {
	comments, err := s.load(owner.PkgPath())
	if err != nil {
		return "", err
	}
	text := comments[owner.Name()+"."+f.Name]
	if rest, ok := strings.CutPrefix(text, f.Name+" "); ok {
		text = yamlName(f) + " " + rest
	}
	return text, nil
}

func (s *Source) load(path string) (map[string]string, error) {
	const op = "confdoc: read source"
	if c, ok := s.packages[path]; ok {
		return c, nil
	}
	rel, ok := strings.CutPrefix(path, s.module)
	if !ok {
		return nil, milepost.E(op, milepost.KindInvalid, "package %s is not part of module %s", path, s.module)
	}
	files, err := filepath.Glob(filepath.Join(s.root, rel, "*.go"))
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if len(files) == 0 {
		return nil, milepost.E(op, milepost.KindNotFound, "no source of package %s in %s: %w", path, s.root, fs.ErrNotExist)
	}
	comments := map[string]string{}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindInvalid, err)
		}
		collect(file, comments)
	}
	s.packages[path] = comments
	return comments, nil
}

// collect adds the comments of all struct fields that a file declares.
func collect(file *ast.File, into map[string]string) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range fields.Fields.List {
			text := f.Doc.Text()
			if text == "" {
				text = f.Comment.Text()
			}
			for _, name := range f.Names {
				into[spec.Name.Name+"."+name.Name] = strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
			}
		}
		return true
	})
}
