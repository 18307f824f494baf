"""Looks for a package in the environment in which an agent is to write it anew.

Runs in the emptied work tree. leaks.json beside it: {"name": distribution, "modules": [top-level name], "hashes": {size: [SHA-256]}}.
Prints a line "LEAK <what> <where>" for each find and "SCANNED <files>" at the end. Found are: modules of these names that
can be imported from outside the work tree, the installed distribution, archives named after it, and files with the very
content of one of its modules wherever the interpreter, pip or a home folder keep files.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import site
import sys


def same(name):
    return re.sub(r"[-_.]+", "-", name or "").lower()


def main():
    here = os.path.realpath(os.getcwd())
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "leaks.json")) as f:
        wanted = json.load(f)
    inside = lambda p: os.path.realpath(p) == here or os.path.realpath(p).startswith(here + os.sep)  # noqa: E731
    for module in wanted["modules"]:
        spec = importlib.util.find_spec(module)
        if spec is not None:
            places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
            for p in places:
                if not inside(p):
                    print("LEAK importable", p)
    for d in importlib.metadata.distributions():
        if same(d.metadata["Name"]) == same(wanted["name"]):
            print("LEAK installed", d.metadata["Name"], d.version)
    archive = re.compile(re.escape(wanted["name"]).replace("\\-", "[-_.]").replace("_", "[-_.]") + r"-\d.*\.(whl|tar\.gz|zip|egg)$", re.I)
    roots = {os.path.realpath(p) for p in [*sys.path, *site.getsitepackages(), site.getusersitepackages(), sys.prefix, os.path.expanduser("~"), "/opt", "/usr/src", "/usr/local", "/srv", "/tmp"] if p}
    seen, files = set(), 0
    for root in sorted(roots):
        for folder, below, names in os.walk(root):
            real = os.path.realpath(folder)
            if real in seen or inside(real) or real.startswith(("/proc/", "/sys/")):
                below[:] = []
                continue
            seen.add(real)
            for name in names:
                path = os.path.join(folder, name)
                files += 1
                if archive.match(name):
                    print("LEAK archive", path)
                try:
                    hashes = wanted["hashes"].get(str(os.path.getsize(path)))
                    if hashes and hashlib.sha256(open(path, "rb").read()).hexdigest() in hashes:  # noqa: SIM115
                        print("LEAK copy", path)
                except OSError:
                    continue
    print("SCANNED", files)


main()
