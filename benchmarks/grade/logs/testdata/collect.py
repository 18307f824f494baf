"""Makes small random projects, runs their tests with the real runners, and writes what these printed as JSONL.

collect.py TOOLS OUT [KIND ...]

TOOLS is a scratch folder with what a kind needs: js/node_modules (mocha, jest, vitest, tape, jasmine, karma with its Chrome
launcher), venv*/ (Python environments with pytest; one of them with django, sympy, xdist, subtests), mv/ (a Maven project
with JUnit 4). go, cargo, php, ruby and g++ come from PATH. A line of OUT is {"id", "parser", "instance_id", "version",
"origin": "real", "tool", "text"}; text that is not UTF-8 is stored as "base64". See record.py for what follows.
"""

# ruff: noqa: E501  (a line of data is easier to read than a column of it)

import base64
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(sys.argv[1]).resolve()
OUT = Path(sys.argv[2])
counts = {}

WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "parse",
    "render",
    "load",
    "store",
    "merge",
    "split",
    "token",
    "route",
    "cache",
    "index",
    "query",
]
ODD = [
    "a - b",
    "x[1]",
    "/tmp/a/b.dcm",
    "ünïcödé ✓",
    "two  spaces",
    "100%",
    "tab\\there",
    "(3ms)",
    "... ok",
    "PASSED",
    "",
    "a/b*c",
    "日本",
]
PRINTS = [
    "plain output",
    "PASSED not_a_test",
    "FAILED - x - y",
    "ok 1 fake",
    "  ✓ fake (2ms)",
    "ERROR: boom here",
    "progress\rdone",
    ">>> ... ok",
]


def emit(tool, raw, *parsers, version="", instance="x__x-1"):
    """Writes one real log for each parser that reads its format."""
    for p in parsers:
        n = counts[p] = counts.get(p, 0) + 1
        row = {
            "id": f"real-{p}-{tool}-{n}",
            "parser": p,
            "instance_id": instance,
            "version": version,
            "origin": "real",
            "tool": tool,
        }
        raw_clean = re.sub(
            rb"/tmp/mpc-\w+",
            b"/testbed",
            raw.replace(str(TOOLS).encode(), b"/opt/tools").replace(str(Path.home()).encode(), b"/home/u"),
        )
        try:
            row["text"] = raw_clean.decode()
        except UnicodeDecodeError:
            row["base64"] = base64.b64encode(raw_clean).decode()
        with OUT.open("a") as f:
            print(json.dumps(row, ensure_ascii=False), file=f)


def run(cmd, cwd, env=None, timeout=180):
    p = subprocess.run(cmd, cwd=cwd, shell=isinstance(cmd, str), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                       env={**os.environ, "CI": "1", "NO_COLOR": "1", **(env or {})}, check=False)  # fmt: skip
    return p.stdout


def outcomes(rng, kinds):
    """A list of (name, outcome) with most tests passing."""
    n = rng.randint(1, 9)
    return [(f"{rng.choice(WORDS)}_{rng.choice(WORDS)}_{i}", rng.choice(kinds)) for i in range(n)]


def workdir():
    return Path(tempfile.mkdtemp(prefix="mpc-"))


def pytest_project(rng, d):
    body = ["import pytest, unittest, sys, os", ""]
    for name, o in outcomes(
        rng, ["pass", "pass", "pass", "fail", "skip", "xfail", "xpass", "error", "param", "print", "raise", "bytes"]
    ):
        if o == "skip":
            body.append("@pytest.mark.skip(reason='not - now')")
        if o in ("xfail", "xpass"):
            body.append("@pytest.mark.xfail(reason='known')")
        if o == "param":
            values = rng.sample(ODD, 4)
            body += [
                f"@pytest.mark.parametrize('v', {values!r})",
                f"def test_{name}(v):",
                f"    assert v != {values[0]!r}, 'why - not'",
            ]
            continue
        if o == "error":
            body += [
                "@pytest.fixture",
                f"def f_{name}():",
                "    raise RuntimeError('set-up - broke')",
                f"def test_{name}(f_{name}): pass",
            ]
            continue
        body.append(f"def test_{name}():")
        body.append({"pass": "    pass", "fail": "    assert 1 == 2, 'a - b - c'", "skip": "    pass", "xfail": "    assert 0", "xpass": "    pass",
                     "print": f"    print({rng.choice(PRINTS)!r}); assert {rng.random() < 0.5}",
                     "bytes": "    sys.stdout.flush(); os.write(1, b'\\xff\\xfe\\xe2\\x82 raw\\r\\n')",
                     "raise": "    raise ValueError('multi\\nline - message')"}[o])  # fmt: skip
    if rng.random() < 0.4:
        body += [
            "class TestC(unittest.TestCase):",
            "    def test_in_class(self): self.assertEqual(1, 1)",
            "    def test_bad(self): self.fail('x - y')",
        ]
        if rng.random() < 0.5:
            body += [
                "    def test_subs(self):",
                "        for i in range(3):",
                "            with self.subTest(i=i): self.assertNotEqual(i, 1)",
            ]
    (d / "test_mod.py").write_text("\n".join(body) + "\n")
    if rng.random() < 0.15:
        (d / "test_broken.py").write_text("import does_not_exist\n")


def kind_pytest(rng):
    plain = ["parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2", "parse_log_matplotlib", "parse_log_seaborn"]
    flags = [
        "-rA",
        "-rA -v",
        "-rA --tb=no -q",
        "-rA --color=yes",
        "-v --no-header",
        "-rA -s",
        "-rA -n 2",
        "-rA -p no:cacheprovider --tb=short",
    ]
    alias = [
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
    ]
    for i in range(90):
        venv = rng.choice(["venv5.4.3", "venv6.2.5", "venv7.4.4", "venv9"])
        flag = rng.choice(flags)
        if "-n 2" in flag:
            venv = "venv9"
        d = workdir()
        pytest_project(rng, d)
        raw = run(f"{TOOLS}/{venv}/bin/python -m pytest {flag}", d)
        emit(venv.replace("venv", "pytest-"), raw, plain[i % len(plain)])
        if i < 3 * len(alias):
            emit(venv.replace("venv", "pytest-"), raw, f"parse_log_{alias[i % len(alias)]}")
        shutil.rmtree(d)


def kind_django(rng):
    settings = "SECRET_KEY='x'\nINSTALLED_APPS=['app']\nDATABASES={'default':{'ENGINE':'django.db.backends.sqlite3','NAME':':memory:'}}\n"
    for i in range(24):
        d = workdir()
        (d / "app").mkdir()
        (d / "app/__init__.py").write_text("")
        (d / "settings.py").write_text(settings + "USE_TZ=True\n")
        body = ["import sys, unittest", "from django.test import TestCase, SimpleTestCase", "class T(SimpleTestCase):"]
        for name, o in outcomes(rng, ["pass", "pass", "doc", "fail", "error", "skip", "xfail", "print", "printok"]):
            if o == "skip":
                body.append("    @unittest.skip('not now')")
            if o == "xfail":
                body.append("    @unittest.expectedFailure")
            body.append(f"    def test_{name}(self):")
            if o == "doc":
                body.append(f'        """Describes {rng.choice(WORDS)} ... in words."""')
            body.append({"fail": "        self.fail('x')", "error": "        raise KeyError('k')", "xfail": "        self.fail()",
                         "print": f"        sys.stderr.write({rng.choice(PRINTS)!r} + '\\n')",
                         "printok": "        sys.stderr.write('Testing against Django installed in /x silenced).\\n')"}.get(o, "        pass"))  # fmt: skip
        (d / "app/tests.py").write_text("\n".join(body) + "\n")
        raw = run(
            f"{TOOLS}/venv9/bin/python -m django test -v {rng.choice([2, 2, 2, 3])} app",
            d,
            {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(d)},
        )
        emit("django", raw, "parse_log_django")
        if i % 3 == 0:
            (d / "app/tests2.py").write_text(
                "\n".join(body).replace(
                    "from django.test import TestCase, SimpleTestCase", "from unittest import TestCase as SimpleTestCase"
                )
                + "\n"
            )
            emit("unittest", run(f"{TOOLS}/venv9/bin/python -m unittest -v app.tests2", d), "parse_log_django")
        shutil.rmtree(d)


def kind_sympy(rng):
    for _ in range(16):
        d = workdir()
        body = ["from sympy.testing.pytest import raises, XFAIL, skip", ""]
        for name, o in outcomes(rng, ["pass", "pass", "fail", "error", "skip", "xfail"]):
            if o == "xfail":
                body.append("@XFAIL")
            body += [
                f"def test_{name}():",
                {
                    "fail": "    assert 1 == 2",
                    "error": "    raise KeyError('k')",
                    "skip": "    skip('why')",
                    "xfail": "    assert 0",
                }.get(o, "    pass"),
            ]
        (d / "test_rand.py").write_text("\n".join(body) + "\n")
        code = "from sympy.testing.runtests import SymPyTests, PyTestReporter as R; t = SymPyTests(R(True, 'short'), [''], None); t._testfiles = ['test_rand.py']; t.test()"
        emit("sympy", run([f"{TOOLS}/venv9/bin/python", "-c", code], d), "parse_log_sympy")
        shutil.rmtree(d)


def js_tests(rng, style):
    """A file of nested suites for mocha, jest, vitest or jasmine."""
    names = [
        "adds",
        "does a thing (3ms)",
        "handles a > b",
        "✓ odd",
        "works ... ok",
        "1) numbered",
        "a: colon",
        "two  spaces",
        "[skipped]",
        "takes 12 ms",
    ]
    text = []
    if style == "vitest":
        text.append("import { describe, it, expect } from 'vitest';")
    if style == "mocha":
        text.append("const expect = (a) => ({ toBe(b) { require('assert').strictEqual(a, b); } });")

    def suite(depth):
        pad = "  " * depth
        text.append(f"{pad}describe({json.dumps(rng.choice(WORDS) + rng.choice(['', ' suite', ' > x']))}, () => {{")
        for _ in range(rng.randint(1, 3)):
            o = rng.choice(["pass", "pass", "pass", "fail", "skip", "slow", "log", "throw"])
            call = ("xit" if style == "jasmine" else "it.skip") if o == "skip" else "it"
            code = {"fail": "expect(1).toBe(2);", "slow": "return new Promise((r) => setTimeout(r, 90));", "throw": "throw new TypeError('bad\\nlines: x');",
                    "log": f"console.log({json.dumps(rng.choice([*PRINTS, '<b>x</b>', '{', '}', '[1, 2]']))});"}.get(o, "")  # fmt: skip
            text.append(f"{pad}  {call}({json.dumps(rng.choice(names) + ' ' + rng.choice(WORDS))}, () => {{ {code} }});")
        if depth < 2 and rng.random() < 0.5:
            suite(depth + 1)
        text.append(f"{pad}}});")

    for _ in range(rng.randint(1, 2)):
        suite(0)
    return "\n".join(text) + "\n"


def js_dir():
    d = workdir()
    (d / "node_modules").symlink_to(TOOLS / "js/node_modules")
    (d / "package.json").write_text('{"name":"x","private":true}')
    return d


def kind_mocha(rng):
    for i in range(22):
        d = js_dir()
        (d / "a.js").write_text(js_tests(rng, "mocha"))
        (d / "b.js").write_text(js_tests(rng, "mocha"))

        def mocha(reporter, files="a.js b.js", d=d):
            return run(f"node_modules/.bin/mocha --reporter {reporter} {files}", d)

        spec = mocha("spec")
        emit("mocha-spec", spec, "parse_log_highlightjs", "parse_log_p5js")
        emit("mocha-spec", b"running 2 test files\n" + spec, "parse_log_lighthouse", version=rng.choice(["9.5", "10.0", "10.2"]))
        if i < 14:
            emit("mocha-min", mocha("min"), "parse_log_eslint", "parse_log_openlayers")
            report = mocha("json")
            emit("mocha-json", b"+ ./node_modules/.bin/mocha tests/run.js --reporter json\n" + report, "parse_log_prismjs")
            emit("mocha-json", b"+ ./node_modules/.bin/mocha --reporter json\n" + report, "parse_log_lighthouse", version="2.4")
            emit("mocha-json", report + b"../../a.js\n" + report, "parse_log_cypress")
            emit("mocha-tap", mocha("tap"), "parse_log_tap")
            emit("mocha-spec", spec.replace(b"a.js", b"b"), "parse_log_marked")
            cypress = b"".join(
                b"  Running:  %s                 (1 of 2)\n\n\n" % f + mocha("spec", f.decode()).lstrip(b"\n")
                for f in (b"a.js", b"b.js")
            )
            emit("mocha-spec", cypress, "parse_log_next", version="1.27")
        shutil.rmtree(d)


def kind_jest(rng):
    suites = ["carbon", "react_pdf", "grommet", "emotion", "prettier", "scratch_gui"]
    for i in range(20):
        d = js_dir()
        for f in "ab":
            (d / f"{f}.test.js").write_text(js_tests(rng, "jest"))
        verbose = run("node_modules/.bin/jest --verbose --ci", d)
        emit("jest", verbose, "parse_log_jest")
        emit("jest", verbose, "parse_log_immutable_js", instance="immutable-js__immutable-js-2006")
        emit("jest", b"+ ./node_modules/.bin/jest --verbose a\n" + verbose, "parse_log_calypso")
        plain = run("node_modules/.bin/jest --ci", d)
        emit("jest", plain, f"parse_log_{suites[i % len(suites)]}", f"parse_log_{suites[(i + 1) % len(suites)]}")
        if i < 4:
            emit("jest", plain, "parse_log_lighthouse", version="5.1")
        if i < 8:
            report = run("node_modules/.bin/jest --json --ci 2>/dev/null", d)
            found = [a for t in json.loads(report[report.index(b"{") :])["testResults"] for a in t["assertionResults"]]
            text = "".join(f"[{a['status'].upper()}] {' > '.join(a['ancestorTitles'] + [a['title']])}\n" for a in found)
            emit("jest-json", text.encode(), "parse_log_jest_json")
            emit("jest-json", text.encode(), "parse_log_immutable_js", instance="immutable-js__immutable-js-2005")
        shutil.rmtree(d)


def kind_vitest(rng):
    for _ in range(12):
        d = js_dir()
        (d / "package.json").write_text('{"name":"x","private":true,"type":"module"}')
        for f in "ab":
            (d / f"{f}.test.js").write_text(js_tests(rng, "vitest"))
        emit("vitest", run("node_modules/.bin/vitest run --reporter=verbose", d), "parse_log_vitest")
        shutil.rmtree(d)


def kind_tape(rng):
    for _i in range(8):
        d = js_dir()
        body = ["const test = require('tape');"]
        for name, o in outcomes(rng, ["pass", "pass", "fail", "skip", "todo"]):
            option = {"skip": "{ skip: true }, ", "todo": "{ todo: true }, "}.get(o, "")
            body.append(
                f"test({json.dumps(name)}, {option}(t) => {{ t.{'ok' if o != 'fail' else 'notOk'}(true, {json.dumps(rng.choice(ODD) + name)}); t.end(); }});"
            )
        (d / "t.js").write_text("\n".join(body))
        emit("tape", run("node t.js", d), "parse_log_tap")
        (d / "n.js").write_text("const {test} = require('node:test'); const assert = require('assert');\n" + "\n".join(
            f"test({json.dumps(n)}, () => {{ assert.ok({'false' if o == 'fail' else 'true'}); }});" for n, o in outcomes(rng, ["pass", "fail"])))  # fmt: skip
        emit("node-test", run("node --test --test-reporter=tap n.js", d), "parse_log_tap")
        (d / "spec").mkdir()
        (d / "spec/a.spec.js").write_text(js_tests(rng, "jasmine"))
        emit("jasmine", run("node_modules/.bin/jasmine --random=false spec/a.spec.js", d), "parse_log_marked")
        shutil.rmtree(d)


AGENTS = [
    f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) {n}/99.0.1 Safari/537.36"
    for n in ("Chrome", "HeadlessChrome")
]


def kind_karma(rng):
    for i in range(20):
        d = js_dir()
        (d / "a.js").write_text(js_tests(rng, "jasmine"))
        reporters = ["mocha", "progress", "dots"]
        reporter = "mocha" if i < 6 else reporters[1 + i % 2]
        (d / "karma.conf.js").write_text(
            "module.exports = (c) => c.set({ frameworks: ['jasmine'], files: ['a.js'], browsers: ['H'], singleRun: true, colors: false,"
            " plugins: ['karma-jasmine', 'karma-chrome-launcher', 'karma-mocha-reporter'], client: { jasmine: { random: false } },"
            " customLaunchers: { H: { base: 'ChromeHeadless', flags: ['--no-sandbox', '--user-agent="
            + rng.choice(AGENTS)
            + "'] } },"
            f" reporters: ['{reporter}'] }});"
        )
        raw = run("node_modules/.bin/karma start --single-run", d, {"CHROME_BIN": shutil.which("chromium") or ""})
        if reporter == "mocha":
            emit("karma-mocha", raw, "parse_log_karma")
            emit(
                "karma-mocha",
                b"+ xvfb-run karma\n".replace(b"+ ", b"+ x ")
                + raw.replace("✔".encode(), "✓".encode()).replace("✖".encode(), "✗".encode()),
                "parse_log_next",
                version="1.19",
            )
        else:
            raw = raw.replace(b"Linux 0.0.0", rng.choice([b"Linux 0.0.0", b"Linux x86_64"]))  # as karma 1 to 5 named the system
            emit("karma", raw, "parse_log_chart_js", "parse_log_bpmn_js", "parse_log_openlayers")
        shutil.rmtree(d)


KINDS = {k[5:]: v for k, v in list(globals().items()) if k.startswith("kind_")}

if __name__ == "__main__":
    import collect_native

    KINDS.update(collect_native.kinds(sys.modules[__name__]))
    for name in sys.argv[3:] or KINDS:
        KINDS[name](random.Random(f"milepost {name}"))
        print(name, sum(counts.values()), file=sys.stderr, flush=True)
