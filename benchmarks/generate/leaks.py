"""Looks for a package in the environment in which an agent is to write it anew.

Runs in the emptied work tree. leaks.json beside it: {"name": distribution, "modules": [top-level name],
"hashes": {size: [SHA-256]}}. Prints a line "LEAK <what> <where>" for each find and "SCANNED <files>" at the end. Found
are: modules of these names that can be imported from outside the work tree, the installed distribution, archives named
after it, and files with the very content of one of its modules wherever the interpreter, pip or a home folder keep files.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import site
import sys

HERE = os.path.realpath(os.getcwd())
FOLDERS = ["/opt", "/usr/src", "/usr/local", "/srv", "/tmp"]


def inside(path):
    path = os.path.realpath(path)
    return path == HERE or path.startswith(HERE + os.sep)


def same(name):
    return re.sub(r"[-_.]+", "-", name or "").lower()


def importable(modules):
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is not None:
            for place in [spec.origin] if spec.origin else list(spec.submodule_search_locations or []):
                if not inside(place):
                    print("LEAK importable", place)


def installed(name):
    for d in importlib.metadata.distributions():
        if same(d.metadata["Name"]) == same(name):
            print("LEAK installed", d.metadata["Name"], d.version)


def files():
    """Every file of the places to search, each folder once."""
    python = [*sys.path, *site.getsitepackages(), site.getusersitepackages(), sys.prefix, os.path.expanduser("~")]
    seen = set()
    for root in sorted({os.path.realpath(p) for p in python + FOLDERS if p}):
        for folder, below, names in os.walk(root):
            real = os.path.realpath(folder)
            if real in seen or inside(real) or real.startswith(("/proc/", "/sys/")):
                below[:] = []
                continue
            seen.add(real)
            yield from (os.path.join(folder, name) for name in names)


def copied(path, hashes):
    try:
        known = hashes.get(str(os.path.getsize(path)))
        if not known:
            return False
        with open(path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest() in known
    except OSError:
        return False


def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "leaks.json")) as f:
        wanted = json.load(f)
    importable(wanted["modules"])
    installed(wanted["name"])
    words = "[-_.]+".join(re.escape(w) for w in re.split("[-_.]+", wanted["name"]))
    archive = re.compile(words + r"-\d.*\.(whl|tar\.gz|zip|egg)$", re.I)
    count = 0
    for path in files():
        count += 1
        if archive.match(os.path.basename(path)):
            print("LEAK archive", path)
        if copied(path, wanted["hashes"]):
            print("LEAK copy", path)
    print("SCANNED", count)


main()
