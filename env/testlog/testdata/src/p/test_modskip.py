import pytest
pytest.importorskip("nonexistent")
def test_1(): pass
