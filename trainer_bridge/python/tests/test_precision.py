"""bfloat16 arithmetic over float32 weights: every pass reads the weights as they are."""

import dataclasses

import pytest
import torch
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


@pytest.mark.parametrize("eps, lr, least", [(1e3, 10.0, 0.999), (1e-8, 1e-2, 0.985)])
def test_an_update_moves_where_float32_moves_it(model_dir, tmp_path, eps, lr, least):
    """A large eps makes AdamW's step the gradient itself; with a small one the first step is its sign, and elements near 0 may
    take another. The weights stay float32 in both."""
    moved = {}
    for dtype in ("float32", "bfloat16"):
        t = trainer.Trainer()
        t.init(model_dir, "", dtype, 1)
        rows = rows_for(t, LENGTHS)  # of this dtype's own logprobs
        before = torch.cat([p.detach().flatten().clone() for p in t.net.parameters()])
        how = config(lr=lr)
        update(t, tmp_path, rows, dataclasses.replace(how, optimizer=dataclasses.replace(how.optimizer, eps=eps)), dtype)
        after = torch.cat([p.detach().flatten() for p in t.net.parameters()])
        assert after.dtype == torch.float32
        moved[dtype] = (after - before).double()
    assert torch.cosine_similarity(moved["float32"], moved["bfloat16"], 0).item() > least
