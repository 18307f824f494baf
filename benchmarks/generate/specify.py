"""Writes the specification of a Python package: its public interface without any body.

Standard input: {"files": {path: text}, "tests": {path: text}, "roots": {path: module name}}, files being the package's modules.
Standard output: {"interface": Markdown, "bodies": [line, ...], "names": count}. Names are public where they do not begin
with an underscore (special methods are), where __all__ lists them, or where the tests import them. Of a function there
are decorators, signature and docstring; of a class bases, docstring, public methods and plain attributes; of a module
docstring, re-exports of an __init__ and constants that are literals. bodies are the lines of function bodies, for the
check that none of them is told. Nothing of the package is imported or run.
"""

import ast
import json
import sys

MAX_LITERAL = 120  # characters of a constant that is told; of a longer one there is the name


def wanted_by(tests, modules):
    """The names that tests import from each module."""
    out = {}
    for text in tests.values():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in modules:
                out.setdefault(node.module, set()).update(a.name for a in node.names)
    return out


def listed(tree):
    """What __all__ lists, as far as it is written down as a literal."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                return set(ast.literal_eval(node.value))
            except (ValueError, TypeError):
                return set()
    return set()


def is_public(name, extra):
    return name in extra or not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def literal(value):
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return len(ast.unparse(value)) <= MAX_LITERAL


ELLIPSIS = ast.Expr(ast.Constant(...))


def shell(node, extra, count):
    """The node without bodies, or None where it is not told."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if not is_public(node.name, extra):
            return None
        count[0] += 1
        doc = ast.get_docstring(node, clean=False)
        node.body = ([ast.Expr(ast.Constant(doc))] if doc is not None else []) + [ELLIPSIS]
        return node
    if isinstance(node, ast.ClassDef):
        if not is_public(node.name, extra):
            return None
        count[0] += 1
        doc = ast.get_docstring(node, clean=False)
        inner = node.body[1:] if doc is not None else node.body
        body = [n for n in (shell(n, extra, count) for n in inner) if n is not None]
        node.body = ([ast.Expr(ast.Constant(doc))] if doc is not None else []) + (body or [ELLIPSIS])
        return node
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_public(node.target.id, extra):
        if node.value is not None and not literal(node.value):
            node.value = None
        return node
    if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        if not any(is_public(t.id, extra) for t in node.targets):
            return None
        if not literal(node.value):
            node.value = ast.Constant(...)
        return node
    return None


def interface(path, text, module, extra, count):
    tree = ast.parse(text)
    doc = ast.get_docstring(tree, clean=False)
    extra = extra | listed(tree)
    out = []
    for node in tree.body[1:] if doc is not None else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.level > 0 or (node.module or "").split(".")[0] == module.split(".")[0]):
            if path.endswith("__init__.py"):
                out.append(node)
        elif isinstance(node, (ast.If, ast.Try)):  # definitions that depend on the platform or the Python version
            for inner in ast.walk(node):
                if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and (kept := shell(inner, extra, count)) is not None:
                    out.append(kept)
        elif (kept := shell(node, extra, count)) is not None:
            out.append(kept)
    if doc is not None:
        out.insert(0, ast.Expr(ast.Constant(doc)))
    if not out:
        return ""
    code = ast.unparse(ast.fix_missing_locations(ast.Module(out, [])))
    return f"### `{module}` ({path})\n\n```python\n{code}\n```\n"


def body_lines(text):
    """The lines of function bodies, stripped, without docstrings."""
    lines, out = text.splitlines(), []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        if body:
            out.append([s for s in (line.strip() for line in lines[body[0].lineno - 1 : body[-1].end_lineno]) if s])
    return out


def main():
    request = json.load(sys.stdin)
    extra = wanted_by(request["tests"], set(request["roots"].values()))
    parts, bodies, count = [], [], [0]
    for path in sorted(request["files"]):
        text, module = request["files"][path], request["roots"][path]
        try:
            bodies += body_lines(text)
            parts.append(interface(path, text, module, extra.get(module, set()), count))
        except (SyntaxError, ValueError) as err:
            sys.exit(f"{path} does not parse: {err}")
    json.dump({"interface": "\n".join(p for p in parts if p), "bodies": bodies, "names": count[0]}, sys.stdout)


main()
