"""bfloat16 arithmetic over float32 weights: every pass reads the weights as they are."""

import pytest
from conftest import rows_for
from test_trainer import LENGTHS, config, update

from milepost_trainer import trainer


def test_a_second_step_sees_the_first(model_dir, tmp_path):
    moved = {}
    for dtype in ("float32", "bfloat16"):
        t = trainer.Trainer()
        t.init(model_dir, "", dtype, 1)
        moved[dtype] = update(t, tmp_path, rows_for(t, LENGTHS), config(epochs=2, lr=1e-2), dtype)["ratio_max"]
    assert moved["bfloat16"] == pytest.approx(moved["float32"], rel=0.2) and moved["float32"] > 2
