"""Adds up the results of build/test: go test's JSON streams and pytest's XML; prints failures, then one closing line."""

import json
import pathlib
import sys
import xml.etree.ElementTree as ET


def go_results(path: pathlib.Path, only_e2e: bool):
    """Yields (name, action, output) of each finished test and of each package that failed without a test."""
    output: dict[tuple[str, str], list[str]] = {}
    failed_tests: set[str] = set()
    for line in path.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        package, test, action = event.get("Package", event.get("ImportPath", "")), event.get("Test", ""), event["Action"]
        key = (package, test)
        if action in ("output", "build-output"):
            output.setdefault(key, []).append(event.get("Output", ""))
        elif action in ("pass", "fail", "skip", "build-fail"):
            is_e2e = test.startswith("TestE2E")
            if test and is_e2e == only_e2e:
                if action == "fail":
                    failed_tests.add(package)
                yield f"{package} {test}", action, "".join(output.get(key, []))
            elif not test and action in ("fail", "build-fail") and package not in failed_tests:
                yield package, "fail", "".join(output.get(key, []))


def python_results(path: pathlib.Path):
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = [c for c in case if c.tag in ("failure", "error")]
        skipped = [c for c in case if c.tag == "skipped"]
        text = "".join(c.text or c.get("message", "") for c in bad + skipped)
        yield name, "fail" if bad else "skip" if skipped else "pass", text


def main(folder: pathlib.Path) -> int:
    counts = {"pass": 0, "fail": 0, "skip": 0}
    sources = [
        ("Go", lambda: go_results(folder / "go.json", only_e2e=False)),
        ("end-to-end", lambda: go_results(folder / "e2e.json", only_e2e=True)),
        ("Python", lambda: python_results(folder / "py.xml")),
    ]
    for title, results in sources:
        seen = 0
        try:
            for name, action, text in results():
                seen += 1
                action = "fail" if action == "build-fail" else action
                counts[action] += 1
                if action == "fail":
                    print(f"--- FAIL {name}\n{text}")
                elif action == "skip":
                    print(f"--- SKIP {name}: {' '.join(text.split())[-200:]}")
        except (OSError, ET.ParseError) as e:
            print(f"--- FAIL {title}: no results: {e}")
            counts["fail"] += 1
            continue
        if seen == 0:
            print(f"--- FAIL {title}: no test ran")
            counts["fail"] += 1
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
