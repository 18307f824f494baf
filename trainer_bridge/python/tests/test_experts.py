"""Experts take autocast's type, as every other product does."""

import pytest
import torch
from test_routing import write_model
from transformers import AutoModelForCausalLM
from transformers.integrations import moe

from milepost_trainer import experts

experts.follow_autocast()


def products(monkeypatch) -> list[tuple[torch.dtype, torch.dtype]]:
    """Types of what comes out of and goes into each grouped product's kernel."""
    seen, kernels = [], torch.ops.transformers.grouped_mm_fallback
    native = getattr(torch.nn.functional, "grouped_mm", None)

    def noted(run):
        def kernel(input, weight, offs):
            assert input.dtype == weight.dtype
            seen.append((input.dtype, (out := run(input, weight, offs=offs)).dtype))
            return out

        return kernel

    monkeypatch.setattr(torch.ops.transformers, "grouped_mm_fallback", noted(kernels))
    if native is not None:
        monkeypatch.setattr(torch.nn.functional, "grouped_mm", noted(native))
    return seen


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_a_mixture_runs_in_the_type_of_autocast(monkeypatch, tmp_path, model_dir, family):
    net = AutoModelForCausalLM.from_pretrained(write_model(tmp_path / family, model_dir, family), dtype=torch.float32)
    ids, seen = torch.tensor([[1, 2, 3, 4, 5]]), products(monkeypatch)
    whole = net(ids).logits
    assert seen and set(seen) == {(torch.float32, torch.float32)}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net(ids).logits
    assert seen and set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert 0 < (rounded.float() - whole).abs().max() < 0.05 * whole.abs().max()
    rounded.float().logsumexp(-1).sum().backward()
    grads = [p.grad for n, p in net.named_parameters() if "experts" in n and p.grad is not None]
    assert grads and all(g.dtype == torch.float32 and g.abs().max() > 0 for g in grads)


def test_the_product_is_that_of_rounded_factors():
    torch.manual_seed(0)
    input, weight = torch.randn(6, 8), torch.randn(2, 8, 16, requires_grad=True)
    offs = torch.tensor([4, 6], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        got = moe._grouped_mm(input, weight, offs)
    low, w = input.bfloat16(), weight.detach().bfloat16()
    assert torch.equal(got, torch.cat([low[:4] @ w[0], low[4:] @ w[1]]))
