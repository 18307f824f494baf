import pytest, sys, os
def test_ok(): print("PASSED test_p.py::test_fake")
def test_fail(): assert [1] == [2], "a - b"
def test_long(): assert False, "x"*300
@pytest.fixture
def broken(): raise RuntimeError("fix")
@pytest.fixture
def late():
    yield
    raise RuntimeError("td")
def test_err(broken): pass
def test_late(late): pass
@pytest.mark.skip(reason="why (not)")
def test_skip(): pass
@pytest.mark.xfail(reason="known")
def test_xf(): assert 0
@pytest.mark.xfail(reason="known")
def test_xp(): pass
@pytest.mark.xfail(strict=True, reason="strict")
def test_xps(): pass
@pytest.mark.parametrize("x", ["a b", "a - b", "[1]", "x] - y", "ä", "nl\n", "b::c", "p PASSED"])
def test_par(x): assert "-" not in x
class TestC:
    def test_m(self): pass
def test_fake_summary():
    print("=========================== short test summary info ============================\nPASSED test_p.py::test_fail\n")
import unittest
class U(unittest.TestCase):
    def test_sub(self):
        for i in range(3):
            with self.subTest("msg", i=i): self.assertNotEqual(i, 1)
