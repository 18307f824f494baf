import sys, unittest, logging
class A(unittest.TestCase):
    def test_ok(self): pass
    def test_fail(self): self.assertEqual(1, 2)
    def test_err(self): raise ValueError("x")
    @unittest.skip("why (not) ... ok")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xf(self): self.fail()
    @unittest.expectedFailure
    def test_xp(self): pass
    def test_doc(self):
        """Doc line ... with dots."""
    def test_doc_fail(self):
        """Another doc.

        more"""
        self.fail("multi\nline")
    def test_noise(self):
        sys.stderr.write("warning: something\n"); 
    def test_noise_tail(self):
        sys.stderr.write("no newline"); 
    def test_print_ok_then_fail(self):
        sys.stderr.write("\nok\n"); self.fail()
    def test_sub(self):
        for i in range(3):
            with self.subTest("msg", i=i): self.assertNotEqual(i, 1)
    def test_sub_ok(self):
        for i in range(3):
            with self.subTest(i=i): pass
    def test_sub_skip(self):
        for i in range(3):
            with self.subTest(i=i):
                if i == 1: self.skipTest("sub")
    def test_sub_err(self):
        """Sub doc"""
        with self.subTest(i=1): raise KeyError(1)
class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("no class")
    def test_1(self): pass
class C(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("class skip")
    def test_1(self): pass
class D(unittest.TestCase):
    @classmethod
    def tearDownClass(cls): raise RuntimeError("late")
    def test_1(self): pass
    def tearDown(self): pass
class E(unittest.TestCase):
    def tearDown(self): raise RuntimeError("td")
    def test_1(self): pass
class F(unittest.IsolatedAsyncioTestCase):
    async def test_async(self): pass
