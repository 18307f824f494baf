"""Looks for files of given content outside the workspace, where the interpreter would import them from.

Standard input: {"root": path, "files": {path in the repository: [git blob id, ...]}}. Standard output: a JSON list of the
files found. Nothing is imported.
"""

import hashlib
import json
import os
import sys


def blob(path):
    with open(path, "rb") as f:
        data = f.read()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def main():
    request = json.load(sys.stdin)
    root, found = os.path.realpath(request["root"]), set()
    for entry in sys.path:
        entry = os.path.realpath(entry or ".")
        if entry == root or entry.startswith(root + os.sep) or not os.path.isdir(entry):
            continue
        for name, ids in request["files"].items():
            for prefix in ("", "src/", "lib/", "Lib/"):
                path = os.path.join(entry, name.removeprefix(prefix))
                if name.startswith(prefix) and os.path.isfile(path) and blob(path) in ids:
                    found.add(path)
    json.dump(sorted(found), sys.stdout)


main()
