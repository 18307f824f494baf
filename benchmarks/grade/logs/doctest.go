package logs

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// parseDoctest reads the XML reporter of doctest (C++). A test is "case > subcase"; it passes where every expression
// reported in the subcase is a success, so where none is, too. Cases without subcases are not reported. XML that is not
// well formed is an error, as in the referee.
func parseDoctest(log string, _ Task, r *Results) error {
	const begin, end = "<doctest", "</doctest>"
	start := strings.Index(log, begin)
	if start < 0 {
		return nil
	}
	n := strings.Index(log[start:], end)
	if n < 0 {
		return errors.New("the XML that begins with <doctest has no end")
	}
	root, err := readXML(log[start : start+n+len(end)])
	if err != nil {
		return fmt.Errorf("the XML of doctest: %w", err)
	}
	for test := range root.below("TestCase") {
		for sub := range test.below("SubCase") {
			s := Passed
			for e := range sub.below("Expression") {
				if e.success != "true" {
					s = Failed
				}
			}
			r.Set(test.label()+" > "+sub.label(), s)
		}
	}
	return nil
}

// node is what the reporter's elements are read for.
type node struct {
	tag, name, success string
	named              bool
	children           []*node
}

func (n *node) label() string {
	if !n.named {
		return "None" // the referee prints the missing value
	}
	return n.name
}

// below yields the elements of a tag below n, parents before children.
func (n *node) below(tag string) func(yield func(*node) bool) {
	return func(yield func(*node) bool) { n.walk(tag, yield) }
}

func (n *node) walk(tag string, yield func(*node) bool) bool {
	for _, c := range n.children {
		if c.tag == tag && !yield(c) || !c.walk(tag, yield) {
			return false
		}
	}
	return true
}

// maxDepth bounds the nesting of elements, and with it the stack of walk.
const maxDepth = 10_000

// readXML reads one element as a strict parser does: encoding/xml alone accepts an attribute twice and a document type.
func readXML(text string) (*node, error) {
	dec := xml.NewDecoder(strings.NewReader(text))
	stack := []*node{{}}
	for {
		token, err := dec.Token()
		if err == io.EOF {
			return stack[0].children[0], nil
		}
		if err != nil {
			return nil, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			if len(stack) > maxDepth {
				return nil, fmt.Errorf("elements are nested more than %d deep", maxDepth)
			}
			n, err := readNode(token)
			if err != nil {
				return nil, err
			}
			top := stack[len(stack)-1]
			top.children = append(top.children, n)
			stack = append(stack, n)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.Directive:
			return nil, errors.New("a document type inside the document")
		}
	}
}

func readNode(e xml.StartElement) (*node, error) {
	n := &node{tag: e.Name.Local}
	if e.Name.Space != "" {
		n.tag = "{" + e.Name.Space + "}" + n.tag
	}
	seen := map[xml.Name]bool{}
	for _, a := range e.Attr {
		if seen[a.Name] {
			return nil, fmt.Errorf("attribute %q of <%s> is there twice", a.Name.Local, n.tag)
		}
		seen[a.Name] = true
		if a.Name.Space != "" {
			continue
		}
		switch value := strings.NewReplacer("\n", " ", "\t", " ").Replace(a.Value); a.Name.Local {
		case "name":
			n.name, n.named = value, true
		case "success":
			n.success = value
		}
	}
	return n, nil
}
