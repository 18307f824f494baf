"""The kinds of collect.py that need a compiler or another interpreter: Go, Rust, Java, C++, PHP, Ruby."""

# ruff: noqa: E501  (a line of data is easier to read than a column of it)

import json
import shutil


def kinds(c):
    def kind_go(rng):
        for _ in range(16):
            d = c.workdir()
            (d / "go.mod").write_text("module x\n\ngo 1.21\n")
            body = ["package x", 'import ("testing"; "fmt")', "var _ = fmt.Sprint"]
            for name, o in c.outcomes(rng, ["pass", "pass", "fail", "skip", "sub", "print"]):
                code = {
                    "fail": 't.Error("a (b) c")',
                    "skip": 't.Skip("not now")',
                    "print": f"fmt.Println({json.dumps(rng.choice(c.PRINTS))})",
                }.get(o, "")
                if o == "sub":
                    code = "".join(
                        f"t.Run({json.dumps(rng.choice(c.ODD))}, func(t *testing.T) {{ if {str(rng.random() < 0.3).lower()} {{ t.Fail() }} }});"
                        for _ in range(3)
                    )
                body.append(f"func Test_{name}(t *testing.T) {{ {code} }}")
            (d / "x_test.go").write_text("\n".join(body) + "\n")
            c.emit("go", c.run("go test -v ./...", d, {"GOFLAGS": "-p=1"}), "parse_log_gotest")
            shutil.rmtree(d)

    def kind_cargo(rng):
        for _ in range(12):
            d = c.workdir()
            (d / "src").mkdir()
            (d / "Cargo.toml").write_text('[package]\nname = "x"\nversion = "0.1.0"\nedition = "2021"\n')
            body = ["/// ```\n/// assert!(true);\n/// ```\npub fn f() {}", "#[cfg(test)] mod tests {"]
            for name, o in c.outcomes(rng, ["pass", "pass", "fail", "ignore", "panic", "print"]):
                mark = {"ignore": "#[ignore] ", "panic": "#[should_panic] "}.get(o, "")
                code = {
                    "fail": 'assert_eq!(1, 2, "why");',
                    "panic": "panic!();",
                    "print": f"println!({json.dumps(rng.choice(c.PRINTS), ensure_ascii=False)}); panic!();",
                }.get(o, "")
                body.append(f"#[test] {mark}fn {name}() {{ {code} }}")
            (d / "src/lib.rs").write_text("\n".join(body) + "\n}\n")
            c.emit(
                "cargo",
                c.run("cargo test --offline", d, {"CARGO_TERM_COLOR": rng.choice(["never", "never", "always"])}),
                "parse_log_cargo",
            )
            shutil.rmtree(d)

    def kind_maven(rng):
        for _ in range(8):
            src = c.TOOLS / "mv/src/test/java/p/ATest.java"
            tests = c.outcomes(rng, ["pass", "fail"])[:3]
            src.write_text("package p; import org.junit.*; public class ATest {" + "".join(
                f" @Test public void {n}(){{ {'Assert.fail();' if o == 'fail' else ''} }}" for n, o in tests) + " }")  # fmt: skip
            script = "set -x\n" + "".join(f"mvn -o -B test -Dtest=ATest#{n}\n" for n, _ in tests)
            c.emit("maven", c.run(["bash", "-c", script], c.TOOLS / "mv"), "parse_log_maven")

    def kind_cpp(rng):
        for _i in range(8):
            d = c.workdir()
            body = ["#include <gtest/gtest.h>"]
            for name, o in c.outcomes(rng, ["pass", "pass", "fail", "skip", "print"]):
                code = {"fail": "EXPECT_EQ(1, 2);", "skip": "GTEST_SKIP();", "print": 'printf("[ OK ] x (y)\\n");'}.get(o, "")
                body.append(f"TEST(Suite{rng.randint(1, 2)}, {name.replace('_', '')}) {{ {code} }}")
            (d / "t.cc").write_text("\n".join(body) + "\n")
            c.run("g++ -O0 t.cc -o t -lgtest -lgtest_main -lpthread", d)
            c.emit(
                "googletest", c.run("./t" + rng.choice(["", " --gtest_color=yes", " --gtest_brief=1"]), d), "parse_log_googletest"
            )
            body = ["#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN", "#include <doctest/doctest.h>"]
            for name, o in c.outcomes(rng, ["pass", "fail", "sub", "sub"]):
                code = "CHECK(1 == 1);" if o == "pass" else "CHECK(1 == 2);"
                if o == "sub":
                    code = "".join(
                        f'SUBCASE("{rng.choice(c.WORDS)} <{j}> & \\"q\\"") {{ CHECK(1 == {rng.choice([1, 1, 2])}); }}'
                        for j in range(2)
                    )
                body.append(f'TEST_CASE("{name}") {{ {code} }}')
            (d / "d.cc").write_text("\n".join(body) + "\n")
            c.run("g++ -O0 -I/usr/include/doctest d.cc -o d", d)
            c.emit("doctest", b"+ ./d\n" + c.run("./d -s -r=xml", d), "parse_log_doctest")
            shutil.rmtree(d)

    def kind_php(rng):
        for _ in range(12):
            d = c.workdir()
            body = [
                "<?php",
                "use PHPUnit\\Framework\\TestCase;",
                f"final class {rng.choice(c.WORDS).title()}Test extends TestCase {{",
            ]
            for name, o in c.outcomes(rng, ["pass", "pass", "fail", "skip", "error", "incomplete"]):
                code = {"fail": "$this->assertSame(1, 2);", "skip": "$this->markTestSkipped('x');", "error": "throw new Exception('e');",
                        "incomplete": "$this->markTestIncomplete();"}.get(o, "$this->assertTrue(true);")  # fmt: skip
                body.append(f"public function test{name.title().replace('_', '')}(): void {{ {code} }}")
            (d / f"{body[2].split()[2]}.php").write_text("\n".join(body) + "\n}\n")
            c.emit("phpunit", c.run("phpunit --testdox .", d), "parse_log_phpunit")
            shutil.rmtree(d)

    def kind_ruby(rng):
        for _ in range(12):
            d = c.workdir()
            tests = c.outcomes(rng, ["pass", "pass", "fail", "skip", "error"])
            code = {"fail": "assert_equal 1, 2", "skip": "skip 'x'", "error": "raise 'e'", "pass": "assert true"}
            body = "\n".join(f"  def test_{n}; {code[o]}; end" for n, o in tests)
            named = "\n".join(
                f"  define_method('test_: {n} should work. ') {{ {code[o]} }}" for n, o in tests
            )  # as the gem shoulda names tests
            (d / "m.rb").write_text(f"require 'minitest/autorun'\nclass MTest < Minitest::Test\n{named}\nend\n")
            c.emit("minitest", c.run("ruby m.rb -v", d), "parse_log_minitest")
            c.emit(
                "minitest",
                c.run("ruby m.rb -v", d),
                "parse_log_jekyll",
                instance=f"jekyll__jekyll-{rng.choice(['9141', '8047', '8167'])}",
            )
            body = body.replace("skip 'x'", "omit 'x'")
            (d / "u.rb").write_text(
                f"require 'test/unit'\nclass UTest < Test::Unit::TestCase\n{body}\n  test('free: words') {{ assert true }}\nend\n"
            )
            c.emit("test-unit", c.run("ruby u.rb --verbose=v", d), "parse_log_ruby_unit")
            it = {"fail": "expect(1).to eq 2", "skip": "skip", "error": "raise 'e'", "pass": "expect(1).to eq 1"}
            spec = "\n".join(f"  it '{n} - x' do {it[o]} end" for n, o in tests)
            (d / "r_spec.rb").write_text(f"RSpec.describe 'R' do\n{spec}\nend\n")
            report = json.loads(c.run("rspec --format json r_spec.rb", d))
            text = "".join(f"{e['full_description']} - {e['status']}\n" for e in report["examples"])
            c.emit("rspec", text.encode(), "parse_log_rspec_transformed_json")
            shutil.rmtree(d)

    return {k[5:]: v for k, v in locals().items() if k.startswith("kind_")}
