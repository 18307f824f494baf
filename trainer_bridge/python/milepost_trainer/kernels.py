"""Fused kernels, an option on GPUs: Liger's Triton programs for norms and gated feed-forward parts.

They are no part of the pinned environment, since they run on GPUs alone: pip install liger-kernel==0.8.5 into it, or point
trainer.address at a trainer of your own. Their losses are not taken: ours needs logprobs by token, and makes them in chunks
(pack.py). Nor are their rotary embeddings, which are a function of a module and so would change every model of the process.
"""

import importlib
import sys

import torch

from milepost_trainer.errors import invalid

KERNELS = ("", "liger")


def apply(net, name: str, device: torch.device) -> None:
    """Changes the modules of a causal model, and no other model's, to fused ones. "" changes nothing."""
    if not name:
        return
    if device.type != "cuda":
        raise invalid(f"kernels is {name!r} and the trainer runs on a {device.type}; allowed: '' there, since liger needs a GPU")
    try:
        liger = importlib.import_module("liger_kernel.transformers.monkey_patch")
    except ImportError as e:
        raise invalid(
            f"kernels is {name!r} and the trainer's environment cannot import it ({e}); "
            "allowed: '', or an environment with liger-kernel (pip install liger-kernel==0.8.5)"
        ) from e
    patch(net, liger)


def patch(net, liger) -> None:
    """As Liger's functions by model type do to a model that exists; the classes of its source module, which they also
    replace, are put back."""
    kind = net.config.model_type
    if kind not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        known = ", ".join(sorted(liger.MODEL_TYPE_TO_APPLY_LIGER_FN))
        raise invalid(f"kernels is 'liger', which does not know models of type {kind!r}; allowed: {known}")
    module = sys.modules[type(net).__module__]
    before = dict(vars(module))
    try:
        liger._apply_liger_kernel_to_instance(net, rope=False, cross_entropy=False, fused_linear_cross_entropy=False)
    finally:
        vars(module).update(before)
