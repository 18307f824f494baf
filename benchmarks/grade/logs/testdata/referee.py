"""Asks the swebench package what it makes of logs. Runs in the referee environment (trainer_bridge/python/envs/install referee).

Reads JSONL from standard input and writes one answer a line. A row {"parser", "instance_id", "version", "text" | "base64"}
gives {"id", "results": [[name, status], ...]}, in the order of the referee's dictionary, or {"id", "error"}. With "tests" a
row also holds a prediction and expected tests, and the answer is the referee's report ("report"). referee.py --maps prints
its tables instead.
"""

import base64
import importlib
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout

from swebench.harness.grading import get_eval_report, get_resolution_status
from swebench.harness.log_parsers import PARSER_REGISTRY
from swebench.types import TestSpec

MODULES = ["python", "javascript", "c", "go", "java", "php", "ruby", "rust"]
PARSERS, REPOS, REGISTRY = dict(PARSER_REGISTRY), {}, sorted(PARSER_REGISTRY)
for m in MODULES:
    module = importlib.import_module(f"swebench.harness.log_parsers.{m}")
    PARSERS.update({k: v for k, v in vars(module).items() if k.startswith("parse_") and callable(v)})
    for k, v in vars(module).items():
        if k.startswith("MAP_REPO_TO_PARSER"):
            REPOS.update(v)
PARSER_REGISTRY.update(PARSERS)  # so that reports, too, can use those reached by repository


def log_bytes(row):
    return base64.b64decode(row["base64"]) if "base64" in row else row.get("text", "").encode()


def spec_of(row):
    tests = row.get("tests", {})
    return TestSpec(
        row["instance_id"],
        "",
        [],
        "",
        row["version"],
        tests.get("f2p", []),
        tests.get("p2p", []),
        row["parser"],
        tests.get("eval_type", "pass_and_fail"),
    )


def parse(row):
    text = log_bytes(row).decode(errors="replace")  # as the harness writes the log ...
    text = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8").read()  # ... and as grading opens it
    return {"results": list(PARSERS[row["parser"]](text, spec_of(row)).items())}


def judge(row):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "log")
        with open(path, "w") as f:
            f.write(log_bytes(row).decode(errors="replace"))
        prediction = {"instance_id": row["instance_id"], "model_patch": row["tests"].get("patch")}
        report = get_eval_report(spec_of(row), prediction, path, True)[row["instance_id"]]
    if "tests_status" in report:
        report["status"] = get_resolution_status(report["tests_status"])
    return {"report": report}


def main():
    if sys.argv[1:] == ["--maps"]:
        print(
            json.dumps(
                {
                    "parsers": {k: v.__name__ for k, v in PARSERS.items()},
                    "repos": {k: v.__name__ for k, v in REPOS.items()},
                    "registry": REGISTRY,
                }
            )
        )
        return
    for line in sys.stdin:
        row = json.loads(line)
        try:
            with redirect_stdout(sys.stderr):
                answer = judge(row) if "tests" in row else parse(row)
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"[:300]}
        print(json.dumps({"id": row["id"], **answer}))


if __name__ == "__main__":
    main()
