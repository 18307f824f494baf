"""Lists every small fault that can be put into Python source files, by syntax tree and exact position.

Standard input: {"files": {path: text}, "families": [name, ...]}.
Standard output: a JSON list of mutants, in the order of path and position:

    {"path", "function", "family", "kind", "line", "start", "end", "old", "new"}

text[start:end] == old in UTF-8 bytes, and the file with new in that place still parses, to a different tree. function
is the qualified name of the innermost function. Touched are statements inside functions, constant defaults, and the
methods and bases of classes; no docstring, annotation or decorator, so a mutated module can still be imported, as far as
its own code at import lets it. Nothing is run. The families are those of SWE-smith's procedural changes
(arXiv 2504.21798, appendix) and some more; a new one is a method of Finder and an entry in FAMILIES.
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
WRONG = {  # an exception that a careless hand would take for another
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "NotImplementedError": "RuntimeError",
    "RuntimeError": "ValueError",
    "StopIteration": "RuntimeError",
    "OSError": "ValueError",
}


class Finder(ast.NodeVisitor):
    """Walks one file and collects its mutants; families says which."""

    def __init__(self, path, text, families):
        self.path, self.data, self.families = path, text.encode(), families
        self.tree = ast.parse(text)
        self.shape = ast.dump(self.tree)
        self.scope, self.found, self.locals = [], [], []
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
        self.locals.append(names_of(node))
        for statement in body:
            self.visit(statement)
        self.block(body)
        self.defaults(node, body)
        self.locals.pop()
        self.scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def block(self, block):
        """What is done to the statements of one block."""
        self.guards(block)
        self.removals(block)
        self.order(block)

    def visit_ClassDef(self, node):
        inside, self.scope = self.scope, [*self.scope, node.name]
        self.classes(node)
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

    def visit_Raise(self, node):  # the words of an error are not behaviour that tests look at
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        self.exception("raised", kind)

    def visit_ExceptHandler(self, node):
        self.exception("caught", node.type)
        self.block(node.body)
        self.generic_visit(node)

    def exception(self, kind, node):
        if isinstance(node, ast.Name) and node.id in WRONG:
            self.add("exception", kind, self.begin(node), self.end(node), WRONG[node.id])

    def visit_Try(self, node):
        for block in (node.body, node.orelse, node.finalbody):
            self.block(block)
        self.generic_visit(node)

    # --- operators and constants

    def visit_BinOp(self, node):
        if type(node.op) in BINARY and not (isinstance(node.op, ast.Mod) and is_text(node.left)):
            self.operator("operator", "arithmetic", node.left, node.right, BINARY[type(node.op)])
        if isinstance(node.op, ORDERED) and not is_text(node.left):
            self.swap(node.left, node.right)
        if isinstance(node.left, ast.BinOp) and type(node.op) in BINARY and not is_text(node.left.left):
            self.add("chain", "operand", self.end(node.left), self.end(node), "")
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        pair = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:
            self.operator("operator", "boolean", node.values[0], node.values[1], pair)
        for before, value in itertools.pairwise(node.values):
            self.add("chain", "condition", self.end(before), self.end(value), "")
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
            self.block(block)
        if node.orelse and not (len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)):
            self.branches(node)
        self.generic_visit(node)

    def branches(self, node):
        """Exchanges what is done in both cases."""
        first, second = self.span(node.body), self.span(node.orelse)
        if first and second and first[1] <= second[0]:
            text = [self.data[a:b].decode() for a, b in (first, second)]
            between = self.data[first[1] : second[0]].decode()
            self.add("branch", "exchanged", first[0], second[1], text[1] + between + text[0])

    def visit_For(self, node):
        self.block(node.body)
        self.generic_visit(node)

    visit_With = visit_For

    def visit_While(self, node):
        self.block(node.body)  # an inverted loop condition would only hang
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

    # --- statements

    def span(self, block):
        """The whole lines of a block; None where it shares them with something else."""
        start, end = self.starts[block[0].lineno - 1], self.starts[block[-1].end_lineno]
        before = self.data[start : self.begin(block[0])]
        after = self.data[self.end(block[-1]) : end].strip()
        if before.strip() or (after and not after.startswith(b"#")) or not self.data[start:end].endswith(b"\n"):
            return None
        return start, end

    def drop(self, kind, node, block):
        """Takes a statement out, with pass in its place where the block would be empty."""
        span = self.span([node])
        if span is not None:
            indent = self.data[span[0] : self.begin(node)].decode()
            self.add("removed", kind, *span, "" if len(block) > 1 else indent + "pass\n")

    def removals(self, block):
        for node in block:
            if isinstance(node, (ast.For, ast.While)):
                self.drop("loop", node, block)
            elif isinstance(node, ast.If) and not (len(node.body) == 1 and isinstance(node.body[0], LEAVING)):
                self.drop("conditional", node, block)
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                self.drop("assignment", node, block)
            elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
                self.drop("call", node, block)
            elif isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
                self.add("removed", "return", self.begin(node), self.begin(node.value), "")
            elif isinstance(node, (ast.With, ast.Try)):
                self.unwrap(node)

    def unwrap(self, node):
        """Leaves of a with or try its body alone."""
        whole, inner = self.span([node]), self.span(node.body)
        if whole is None or inner is None:
            return
        less = node.body[0].col_offset - node.col_offset
        lines = self.data[inner[0] : inner[1]].decode().splitlines(keepends=True)
        if any(line.strip() and line[:less].strip() for line in lines):
            return  # a text of several lines that is not indented
        self.add("removed", "wrapper", *whole, "".join(line[less:] if line.strip() else line for line in lines))

    def order(self, block):
        """Exchanges two plain statements that follow each other."""
        plain = (ast.Assign, ast.AugAssign, ast.Expr)
        for first, second in itertools.pairwise(block):
            if isinstance(first, plain) and isinstance(second, plain):
                one, two = self.span([first]), self.span([second])
                if one and two and one[1] == two[0]:
                    swapped = self.data[two[0] : two[1]] + self.data[one[0] : one[1]]
                    self.add("order", "statements", one[0], two[1], swapped.decode())

    # --- functions, classes, names

    def defaults(self, node, body):
        """Constant defaults, and None that the body would replace by a fresh list or dict."""
        fresh = {}
        for guard in body:
            if isinstance(guard, ast.If) and len(guard.body) == 1 and isinstance(guard.body[0], ast.Assign):
                made, target = guard.body[0].value, guard.body[0].targets[0]
                if isinstance(target, ast.Name) and ast.unparse(made) in ("[]", "{}"):
                    fresh[target.id] = ast.unparse(made)
        args = node.args
        positional = [*args.posonlyargs, *args.args]
        named = positional[len(positional) - len(args.defaults) :] + args.kwonlyargs
        for arg, value in zip(named, args.defaults + args.kw_defaults, strict=True):
            if not isinstance(value, ast.Constant):
                continue
            place = (self.begin(value), self.end(value))
            if isinstance(value.value, bool):
                self.add("default", "truth", *place, str(not value.value))
            elif type(value.value) is int and abs(value.value) < 1000:
                self.add("default", "number", *place, str(value.value + 1))
            elif value.value is None and arg.arg in fresh:
                self.add("default", "mutable", *place, fresh[arg.arg])

    def classes(self, node):
        """Takes out a method, or a base among several."""
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and not item.decorator_list and len(node.body) > 1:
                span = self.span([item])
                if span is not None:
                    self.add("class", "method", *span, "")
        for before, base in itertools.pairwise(node.bases):
            self.add("class", "base", self.end(before), self.end(base), "")

    def visit_Name(self, node):
        """Takes the next name of the function for this one."""
        names = self.locals[-1] if self.locals else []
        if isinstance(node.ctx, ast.Load) and node.id in names and len(names) > 1:
            other = names[(names.index(node.id) + 1) % len(names)]
            self.add("variable", "name", self.begin(node), self.end(node), other)


def names_of(function):
    """The parameters of a function, without self and cls, and the names it assigns at its top, in their order."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs) if a.arg not in ("self", "cls")]
    for node in function.body:
        if isinstance(node, ast.Assign):
            names += [t.id for t in node.targets if isinstance(t, ast.Name)]
    return list(dict.fromkeys(names))


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


FAMILIES = (
    "operator",
    "constant",
    "off_by_one",
    "swapped",
    "guard",
    "branch",
    "removed",
    "order",
    "chain",
    "exception",
    "default",
    "class",
    "variable",
)


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
