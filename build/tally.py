"""Adds up the results of build/test: go test's JSON streams and pytest's XML; prints failures, then one closing line.

A test that began and never ended (a panic, a time limit) has failed, and so has a package that could not be built or
that failed outside of its tests. A source without any result counts as one failure, with what it said on its error
stream.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree as ET

Result = tuple[str, str, str]  # name, "pass", "fail" or "skip", output


def is_e2e(test: str) -> bool:
    return test.startswith("TestE2E")


def go_results(path: pathlib.Path, e2e: bool) -> list[Result]:
    """The results of a go test -json stream, of end-to-end tests or of the others."""
    results: list[Result] = []
    output: dict[tuple[str, str], list[str]] = {}
    open_tests: set[tuple[str, str]] = set()
    told: set[str] = set()  # packages with a failed test

    def add(package: str, test: str, action: str) -> None:
        open_tests.discard((package, test))
        if is_e2e(test) == e2e:
            results.append((f"{package} {test}", action, "".join(output.get((package, test), []))))
        if action == "fail":
            told.add(package)

    for line in path.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # not of go test: a child's stray output
        package, test, action = event.get("Package", event.get("ImportPath", "")), event.get("Test", ""), event["Action"]
        if action in ("output", "build-output"):
            output.setdefault((package, test), []).append(event.get("Output", ""))
        elif action == "run":
            open_tests.add((package, test))
        elif test and action in ("pass", "fail", "skip"):
            add(package, test, action)
        elif not test and action == "fail":
            for left in sorted(t for p, t in open_tests if p == package):
                add(package, left, "fail")
            if package not in told:
                build = output.get((event.get("FailedBuild", ""), ""), [])
                results.append((package, "fail", "".join(build + output.get((package, ""), []))))
    results += [(f"{p} {t}", "fail", "it never ended") for p, t in sorted(open_tests) if is_e2e(t) == e2e]
    return results


def python_results(path: pathlib.Path) -> list[Result]:
    results = []
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = [c for c in case if c.tag in ("failure", "error")]
        skipped = [c for c in case if c.tag == "skipped"]
        text = "\n".join(c.text or c.get("message", "") for c in bad + skipped)
        results.append((name, "fail" if bad else "skip" if skipped else "pass", text))
    return results


def without_results(folder: pathlib.Path, name: str, why: str) -> list[Result]:
    errors = folder / f"{name}.err"
    said = errors.read_text(errors="replace")[-4000:] if errors.exists() else ""
    return [(name, "fail", f"{why}\n{said}")]


def main(folder: pathlib.Path) -> int:
    counts = {"pass": 0, "fail": 0, "skip": 0}
    sources = {
        "go": lambda: go_results(folder / "go.json", e2e=False),
        "py": lambda: python_results(folder / "py.xml"),
        "e2e": lambda: go_results(folder / "e2e.json", e2e=True),
    }
    for name, read in sources.items():
        try:
            results = read()
        except (OSError, ET.ParseError) as e:
            results = without_results(folder, name, f"no results: {e}")
        if not results:
            results = without_results(folder, name, "no test ran")
        for test, action, text in results:
            counts[action] += 1
            if action == "fail":
                print(f"--- FAIL {test}\n{text}")
            elif action == "skip":
                reason = [line.strip() for line in text.splitlines() if not line.startswith(("===", "---"))]
                print(f"--- SKIP {test}: {' '.join(reason)[-300:]}")
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
