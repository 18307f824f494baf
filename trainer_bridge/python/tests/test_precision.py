"""bfloat16 arithmetic over float32 weights: every pass reads the weights as they are."""

import pytest
from conftest import rows_for
from test_trainer import LENGTHS, config, update

from milepost_trainer import trainer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_step_sees_the_first(model_dir, tmp_path, dtype):
    t = trainer.Trainer()
    t.init(model_dir, "", dtype, 1)
    m = update(t, tmp_path, rows_for(t, LENGTHS), config(epochs=2, lr=1e-2))
    assert m["optimizer_steps"] == 2 and m["ratio_max"] - m["ratio_min"] > 0.1
