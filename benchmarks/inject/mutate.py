"""Lists every small fault that can be put into Python source files, by syntax tree and exact position.

Standard input: {"files": {path: text}, "families": [name, ...]}.
Standard output: a JSON list of mutants, in the order of path and position:

    {"path", "function", "family", "kind", "line", "start", "end", "old", "new"}

text[start:end] == old in UTF-8 bytes, and the file with new in that place still parses, to a different tree. function
is the qualified name of the innermost function. Only statements inside functions are touched, and no docstring,
annotation or default, so a mutated module can still be imported. Nothing is run. A new family is a method of Finder
named after it and an entry in FAMILIES.
"""

import ast
import itertools
import json
import re
import sys

BINARY = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
COMPARE = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">"),
    ast.Gt: (">", "<"),
    ast.LtE: ("<=", ">="),
    ast.GtE: (">=", "<="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
BOUNDARY = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Finder(ast.NodeVisitor):
    """Walks one file and collects its mutants; families says which."""

    def __init__(self, path, text, families):
        self.path, self.data, self.families = path, text.encode(), families
        self.tree = ast.parse(text)
        self.shape = ast.dump(self.tree)
        self.scope, self.found = [], []
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def run(self):
        self.visit(self.tree)
        self.found.sort(key=lambda m: (m["start"], m["end"], m["family"], m["new"]))
        return self.found

    # --- positions

    def begin(self, node):
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node):
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node):
        return self.data[self.begin(node) : self.end(node)].decode()

    def add(self, family, kind, start, end, new):
        """Keeps a mutant if the file still parses with it and means something else."""
        if family not in self.families or not self.scope:
            return
        changed = self.data[:start] + new.encode() + self.data[end:]
        try:
            tree = ast.parse(changed)
        except (SyntaxError, ValueError):
            return
        if ast.dump(tree) == self.shape:
            return
        self.found.append(
            {
                "path": self.path,
                "function": ".".join(self.scope),
                "family": family,
                "kind": kind,
                "line": self.data.count(b"\n", 0, start) + 1,
                "start": start,
                "end": end,
                "old": self.data[start:end].decode(),
                "new": new,
            }
        )

    def between(self, left, right, operator):
        """The place of an operator between two nodes, or None where the gap holds anything else but brackets."""
        start, end = self.end(left), self.begin(right)
        gap = self.data[start:end].decode()
        word = r"\s+".join(re.escape(part) for part in operator.split())
        match = re.fullmatch(r"([\s)]*)(" + word + r")([\s(]*)", gap)
        if match is None:
            return None
        at = start + len(match.group(1).encode())
        return at, at + len(match.group(2).encode())

    def operator(self, family, kind, left, right, pair):
        place = self.between(left, right, pair[0])
        if place is not None:
            self.add(family, kind, *place, pair[1])

    # --- what is walked

    def visit_FunctionDef(self, node):
        self.scope.append(node.name)
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]  # the docstring
        for statement in body:
            self.visit(statement)
        self.guards(body)
        self.scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node):
        inside, self.scope = self.scope, [*self.scope, node.name]
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.visit(statement)
        self.scope = inside

    def visit_Module(self, node):
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.visit(statement)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node):
        pass  # positions inside f-strings differ between Python versions

    def visit_Raise(self, node):
        pass  # the words of an error are not behaviour that tests look at

    # --- operators and constants

    def visit_BinOp(self, node):
        if type(node.op) in BINARY and not (isinstance(node.op, ast.Mod) and is_text(node.left)):
            self.operator("operator", "arithmetic", node.left, node.right, BINARY[type(node.op)])
        if isinstance(node.op, ORDERED) and not is_text(node.left):
            self.swap(node.left, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        pair = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:
            self.operator("operator", "boolean", node.values[0], node.values[1], pair)
        self.generic_visit(node)

    def visit_Compare(self, node):
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=False):
            self.operator("operator", "comparison", left, right, COMPARE[type(op)])
            if type(op) in BOUNDARY:
                self.operator("off_by_one", "boundary", left, right, BOUNDARY[type(op)])
            left = right
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            self.add("constant", "truth", self.begin(node), self.end(node), str(not node.value))
        elif type(node.value) is int and abs(node.value) < 1000:
            self.add("constant", "number", self.begin(node), self.end(node), str(node.value + 2))

    def visit_Subscript(self, node):
        index = node.slice
        bounds = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
        for bound in bounds:
            if isinstance(bound, ast.Constant) and type(bound.value) is int:
                self.add("off_by_one", "index", self.begin(bound), self.end(bound), str(bound.value + 1))
        self.generic_visit(node)

    # --- calls

    def visit_Call(self, node):
        args = node.args
        if len(args) >= 2 and not any(isinstance(a, ast.Starred) for a in args[:2]):
            self.swap(args[0], args[1])
        if isinstance(node.func, ast.Name) and node.func.id == "range" and args:
            stop = args[0] if len(args) == 1 else args[1]
            self.add("off_by_one", "range", self.end(stop), self.end(stop), " - 1")
        self.generic_visit(node)

    def swap(self, left, right):
        """Exchanges two nodes that stand in a row; lambdas and the like stay, they would need brackets."""
        plain = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)
        if isinstance(left, plain) and isinstance(right, plain):
            gap = self.data[self.end(left) : self.begin(right)].decode()
            self.add("swapped", "arguments", self.begin(left), self.end(right), self.text(right) + gap + self.text(left))

    # --- conditions

    def visit_If(self, node):
        self.invert(node.test)
        for block in (node.body, node.orelse):
            self.guards(block)
        self.generic_visit(node)

    def visit_For(self, node):
        self.guards(node.body)
        self.generic_visit(node)

    visit_With = visit_For

    def visit_While(self, node):
        self.guards(node.body)  # an inverted loop condition would only hang
        self.generic_visit(node)

    def visit_IfExp(self, node):
        self.add("guard", "expression", self.begin(node), self.end(node), self.text(node.body))
        self.generic_visit(node)

    def invert(self, test):
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.add("guard", "inverted", self.begin(test), self.end(test), self.text(test.operand))
        elif isinstance(test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            self.add("guard", "inverted", self.begin(test), self.end(test), "not " + self.text(test))

    def guards(self, block):
        """Removes an if without else that only leaves, where another statement follows."""
        for node, _after in itertools.pairwise(block):
            if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], LEAVING):
                self.add("guard", "removed", self.starts[node.lineno - 1], self.starts[node.end_lineno], "")


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


FAMILIES = ("operator", "constant", "off_by_one", "swapped", "guard")


def main():
    request = json.load(sys.stdin)
    unknown = [f for f in request["families"] if f not in FAMILIES]
    if unknown:
        sys.exit(f"mutate: families {unknown} are not among {list(FAMILIES)}")
    out = []
    for path in sorted(request["files"]):
        try:
            out += Finder(path, request["files"][path], set(request["families"])).run()
        except SyntaxError as err:
            sys.exit(f"mutate: {path} does not parse: {err}")
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
