"""Makes logs that look like those of each parser, and damaged copies of real ones: generate.py SEED COUNT [REAL.jsonl].

Writes JSONL rows as collect.py does, for each parser COUNT generated logs and COUNT damaged real ones, or twice COUNT generated ones where
there is no real log; origin is "generated" or "mutated". Lines of other parsers are mixed in, and some lines are damaged: a character dropped, doubled or
replaced by one that text-handling code trips over.
"""

# ruff: noqa: E501, RUF001  (a line of data is easier to read than a column of it)

import base64
import json
import random
import sys
from pathlib import Path

NAME = ["test_a", "tests/test_x.py::test_y[a-b]", "test_z[/tmp/d/e.dcm]", "test_q[//net/x]", "test_o[/a/*/b]", "a > b", "suite name", "x: y", "name (3ms)", "ünï ✓",
        "t::u", "pkg.Test > method", "Foo#bar. ", "a - b", "F. x = E", "[1]", "1) two", "A::B#c", "test_n[a b]", "x[1", "y]2[", "(q) (r)", "a in b/c.tcl", "..."]  # fmt: skip
TIME = ["(3ms)", "(1.2 s)", "(4.5s)", "(0.00s)", "(12 ms)", "5 ms", "7s", "[skipped]", "", "", "(x)"]
PY = ["PASSED {n}", "FAILED {n} - assert 1 == 2 - x", "ERROR {n}", "ERROR {n} - boom", "SKIPPED [2] a.py:3: why", "SKIPPED {n}", "XFAIL {n}", "XPASS {n}", "{n} PASSED",
      "{n} PASSED  [ 50%]", "{n} FAILED", "\x1b[32mPASSED\x1b[0m {n}", "\x1b[1mFAILED\x1b[0m {n} - x", "ERRORS {n}", "FAILED", "PASSED [100%]", "ERROR: {n}", "PASSED MouseButton.LEFT {n}",
      "== short test summary info =="]  # fmt: skip
UNIT = ["{n} ... ok", "{n} ... OK", "{n} ...  OK", "{n} ... FAIL", "{n} ... ERROR", "{n} ... skipped 'x'", "FAIL: {n}", "ERROR: {n}", "{n} ... noise", "ok", "okay then",
        "--version is equivalent to version ... ok", "{n} ... Testing against Django installed in '/x' with up to 2 processes\nFound silenced).\nok",
        "{n} ... Internal Server Error: /a/b/\nok", "{n} ... System check identified no issues (0 silenced)\nok", "FAIL:",
        "Applying sites.0002_alter_domain_unique...test_no_migrations (x) ... ok"]  # fmt: skip
SYMPY = [
    "test_a ok",
    "test_b F",
    "test_c E",
    "  test_d[3] ok  ",
    "_____ {n} sympy/a/test_b.py:test_c _____",
    "  File a.py: line 2 in x",
    "test_e f",
    "___ a.py:b ___",
]
MARKS = [
    "  ✓ {n} {t}",
    "    ✕ {n} {t}",
    "  ○ {n}",
    " × {n} {t}",
    " ↓ {n} {t}",
    "✓ {n}",
    "  ✔ {n} {t}",
    "  ✖ {n}",
    "   1) {n} {t}",
    "1) {n}",
    "  suite {n}",
    "      deeper {n}",
    "",
    "  2 passing (3ms)",
    "Test Suites: 1",
    "  ● {n}",
]
SUITES = ["PASS {n} {t}", "FAIL {n} {t}", "PASS", "FAIL\t{n}", "PASSED {n}", "PASS  {n} (1.2 s) {t}"]
KARMA = ["Starting browser Chrome", "START:", "SUMMARY:", "  {n}", "    {n}", "      ✔ {n}", "      ✖ {n}", "TOTAL 3", "  LOG x", "\x1b[31m  ✗ {n}\x1b[0m", "   ✓ {n}", "AssertionError:  #x", "", "a xvfb-run b",
         "Chrome Headless 99.0.1 (Linux x86_64) {n} FAILED", "Chrome 99.0 (Linux 1.2) {n} FAILED", "HeadlessChrome 1.2 (Linux 0.0) {n} FAILED", "2KPhantomJS 2.1 (Linux x86_64) {n} FAILED",
         "2KPhantomJS 2.1 (Linux 0.0.0) {n} FAILED", "\x1b[31mChrome 9.1 (x) {n} FAILED\x1b[39m", "case {n}: mismatch", "Chrome 1 (Linux a)(b) {n}FAILED"]  # fmt: skip
MOCHA = [
    "  1) {n}\n       deeper:\n     Error: x",
    "  12) {n}:\n     AssertionError [E]: y",
    "  {n}",
    "Error:",
    "{",
    "}",
    "  [",
    "]",
    "{ a: 1 }",
    "<p>x</p>",
    "<a><a>y</a>",
    "</a>",
    "<b>",
    "  3) <i>{n}</i>\n      b\n        c:",
    "TypeError: z",
    "  4) {n}",
]
JSONISH = [
    '  "passes": [',
    '  "failures": [',
    '      "fullTitle": "{n}",',
    "  ],",
    "  }",
    "]",
    "../..",
    "./node_modules/.bin/mocha --reporter json",
    '  "fullTitle":  "x",',
]
PRISM = [
    '+ ./node_modules/.bin/mocha tests/run.js --reporter json\n{"stats": {}, "failures": [{"fullTitle": "{n}"}], "passes": [{"fullTitle": "p {n}"}, {"fullTitle": "q"}]}',
    "noise",
    "noise }",
]
LIGHTHOUSE = [
    "running 3 test files",
    "  ✔ {n} (3ms)",
    "  2) {n} (3ms)",
    "  3) {n}",
    "  12 passing (1s)",
    *MARKS[:4],
    "    suite",
    "running 1 test files",
]
NEXT2 = ["  Running:  {n} (1 of 2)\n\n\n  suite {n}", "    ✓ {n} (3ms)", "    1) {n}", "      ✓ deep (2ms)", "", "    ✓ none"]
QUARTO = ["[smoke] > {n} ... \x1b[0m\x1b[32mok\x1b[0m (3s)", "[unit] > /tmp/abc1/x.md ... \x1b[31mFAILED\x1b[0m", "[smoke] > /tmp/q7.qmd ...", "[unit] > /tmp/abc1/y ... 32mok", "[smoke] x 34mINFO", "test result: [unit] ok",
          "[unit] 3 passed (2 steps) 1 failed", "ERRORS", "failures:", "[smoke] > /tmp/z2/w.qmd /tmp/z3/ ... 32mok"]  # fmt: skip
PLOTLY = ["  - {n} :", "    - {n} :", "    * {n} : ok", "      * {n} : failed ok", "  * {n} : x", "- a :", " * b : OK!"]
CALYPSO = [
    "+ x ./node_modules/.bin/jest a",
    "  ✓ {n} (3ms)",
    "  ✕ {n} (4ms)",
    "    ✓ {n}",
    "  suite",
    "    deeper",
    "Test Suites: 1",
    "  ● x",
    "✓ flat",
    "  ✓ a (2ms) b",
]
NATIVE = ["[ok]: {n} (12 ms)", "[err]: {n} in tests/a.tcl", "[skip]: {n}", "[ignore]: {n}", "[ok]: {n}", "PASS: {n}", "FAIL: {n}", "pass  {n}", "skip  {n}", "FAIL  {n}", "[       OK ] A.b (0 ms)", "[  FAILED  ] {n} (1 ms)",
          "x [OK] y [ FAILED ] {n} (2)", "--- PASS: {n} (0.00s)", "    --- FAIL: {n} (0.1s)", "--- SKIP: {n} (0)", "test a::b ... ok", "test {n} ... FAILED", "test c ... ignored", "test d - should panic ... ok", "test  e   ...  ok"]  # fmt: skip
DOCTEST = ['<doctest version="2"><TestCase name="{n}"><SubCase name="s"><Expression success="true"/><SubCase name="in"/></SubCase></TestCase>', '<TestCase name="b"><SubCase name="t"><Expression success="false"></Expression></SubCase></TestCase>',
           "<TestCase><SubCase/></TestCase>", "</doctest>", "text &amp; <i/>", "noise"]  # fmt: skip
JAVA = [
    "+ mvn test -Dtest={n} x",
    "[INFO] BUILD SUCCESS",
    "[INFO] BUILD FAILURE",
    "-Dtest=a -Dtest=b",
    "    [junit] [PASS] {n}",
    "[junit]  [ERR] {n}",
    "[junit] [FAIL] {n}",
    "pkg.Test > method PASSED",
    "a.B > c",
    "PASSED",
    "FAILED",
    "> Task x FAILED",
    "{n}  FAILED",
    "a > b",
]
SCRIPT = ["Suite (Full\\Name)", " ✔ {n} {t}", " ✘ {n}", " ↩ {n}", "✔{n}", "A::B#test_x. = 0.01 s = .", "{n}. = 0.1 s = F", "A#b = E", "{n} ....F", "{n} ..", "x .F", "test: {n}:\t.: (0.1)", "{n}: F", "  {n}:  E: x", "y: Other", "z: O", "{n} - passed", "{n} - failed (x)",
          "{n} - pending", "w: Eé"]  # fmt: skip

POOLS = {
    "django": UNIT, "sympy": SYMPY, "calypso": CALYPSO, "bpmn_js": KARMA, "carbon": SUITES, "eslint": MOCHA, "grommet": SUITES, "highlightjs": MARKS, "lighthouse": LIGHTHOUSE + JSONISH + SUITES,
    "next": KARMA + NEXT2, "openlayers": KARMA + MOCHA, "prismjs": PRISM, "quarto_cli": QUARTO, "chart_js": KARMA, "marked": MOCHA + MARKS, "p5js": MOCHA, "react_pdf": SUITES, "jest": MARKS, "jest_json": ["[PASSED] {n}", "[FAILED] {n}", "[PENDING] {n}"],
    "vitest": MARKS, "karma": KARMA, "tap": ["ok 1 {n}", "not ok 2 - {n}", "ok", "ok 3 x # SKIP", "  ok 4 {n}", "# tests 3"], "immutable_js": [*MARKS, "[PASSED] {n}", "[FAILED] {n}"], "emotion": SUITES, "cypress": JSONISH, "prettier": SUITES, "scratch_gui": SUITES,
    "redis": NATIVE, "jq": NATIVE, "doctest": DOCTEST, "micropython_test": NATIVE, "googletest": NATIVE, "gotest": NATIVE, "cargo": NATIVE, "maven": JAVA, "ant": JAVA, "gradle_custom": JAVA, "phpunit": SCRIPT, "minitest": SCRIPT, "cucumber": SCRIPT,
    "ruby_unit": SCRIPT, "rspec_transformed_json": SCRIPT, "jekyll": SCRIPT,
}  # fmt: skip
for p in [
    "pytest",
    "pytest_options",
    "pytest_v2",
    "seaborn",
    "matplotlib",
    "astroid",
    "flask",
    "marshmallow",
    "pvlib",
    "pyvista",
    "sqlfluff",
    "xarray",
    "pydicom",
    "requests",
    "pylint",
    "astropy",
    "scikit",
    "sphinx",
]:
    POOLS[p] = PY
ALL = sorted({line for pool in POOLS.values() for line in pool})
NASTY = [
    "\r",
    "\0",
    "\x1b",
    "\x1c",
    "\x85",
    "\xa0",
    "\u2028",
    "\u3000",
    "\t",
    "é",
    "٣",
    "²",
    "—",
    "(",
    ")",
    "[",
    "]",
    ".",
    ":",
    " ",
    "\n",
    "✓",
    "E",
    "<",
    ">",
    '"',
    "\ufffd",
]


def task_of(name, rng):
    if name == "parse_log_jekyll":
        return f"jekyll__jekyll-{rng.choice(['9141', '8047', '8167', '8761', '8771', '1'])}", "4.3"
    if name == "parse_log_immutable_js":
        return f"immutable-js__immutable-js-{rng.choice(['2006', '2005', '7'])}", ""
    if name == "parse_log_lighthouse":
        return "lh__lh-1", rng.choice(["9.5", "10.0", "10.2", "5.1", "2.9", "3", " 2e0 ", "x"])
    return "a__b-1", rng.choice(["1.27", "1.19"])


def damage(text, rng, rate):
    chars = list(text)
    for _ in range(max(1, int(len(chars) * rate))):
        i = rng.randrange(len(chars)) if chars else 0
        chars[i : i + 1] = rng.choice([[], chars[i : i + 1] * 2, [rng.choice(NASTY)], [rng.choice(NASTY), *chars[i : i + 1]]])
    return "".join(chars)


def generate(name, rng):
    pool = (
        POOLS[name.removeprefix("parse_log_").removeprefix("parse_").replace("plotly_js", "plotly")]
        if "plotly" not in name
        else PLOTLY
    )
    out = []
    for _ in range(rng.randint(1, 40)):
        line = rng.choice(pool) if rng.random() < 0.85 else rng.choice(ALL)
        line = line.replace("{n}", rng.choice(NAME)).replace("{t}", rng.choice(TIME))
        if rng.random() < 0.12:
            line = damage(line, rng, 0.05)
        out.append(" " * rng.choice([0, 0, 0, 0, 1, 2, 4]) + line + " " * rng.choice([0, 0, 0, 0, 1]))
    return rng.choice(["\n", "\n", "\n", "\n", "\r\n"]).join(out).encode()


def mutate(raw, rng):
    lines = raw.decode(errors="surrogateescape").split("\n")
    for _ in range(rng.randint(1, 6)):
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        how = rng.randrange(5)
        if how == 0:
            lines[i] = damage(lines[i], rng, 0.05)
        elif how == 1:
            lines[i], lines[j] = lines[j], lines[i]
        elif how == 2:
            lines.insert(i, lines[j])
        elif how == 3:
            lines[i] = lines[i][: rng.randint(0, len(lines[i]))]
        elif len(lines) > 1:
            del lines[i]
    raw = "\n".join(lines).encode(errors="surrogateescape")
    if rng.random() < 0.3:
        cut = rng.randrange(len(raw) + 1)
        raw = raw[:cut] + rng.choice([b"\xff", b"\xe2\x9c", b"\xed\xa0\x80", b"\xc0\xaf", b"\r", b"\xf0\x9f\x92"]) + raw[cut:]
    return raw


def emit(row, raw):
    try:
        row["text"] = raw.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(raw).decode()
    print(json.dumps(row, ensure_ascii=False))


def main():
    seed, count = sys.argv[1], int(sys.argv[2])
    real = {}
    if len(sys.argv) > 3:
        for line in Path(sys.argv[3]).read_text().split("\n")[:-1]:
            row = json.loads(line)
            real.setdefault(row["parser"], []).append(row)
    names = ["parse_plotly_js", *(f"parse_log_{p}" for p in sorted(POOLS))]
    for name in names:
        rng = random.Random(f"{seed} {name}")
        for i in range(count if name in real else 2 * count):
            instance, version = task_of(name, rng)
            emit(
                {"id": f"gen-{name}-{i}", "parser": name, "instance_id": instance, "version": version, "origin": "generated"},
                generate(name, rng),
            )
        for i in range(count if name in real else 0):
            r = rng.choice(real[name])
            raw = base64.b64decode(r["base64"]) if "base64" in r else r.get("text", "").encode()
            emit(
                {
                    "id": f"mut-{name}-{i}",
                    "parser": name,
                    "instance_id": r["instance_id"],
                    "version": r["version"],
                    "origin": "mutated",
                },
                mutate(raw, rng),
            )


if __name__ == "__main__":
    main()
