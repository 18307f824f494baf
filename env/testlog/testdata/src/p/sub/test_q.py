class TestInner:
    def test_one(self): pass
    class TestDeep:
        def test_two(self): assert False
