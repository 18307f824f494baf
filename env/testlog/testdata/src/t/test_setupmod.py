import unittest
def setUpModule(): raise RuntimeError("mod")
class M(unittest.TestCase):
    def test_1(self): pass
