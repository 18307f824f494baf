"""Experts of a mixture under autocast.

transformers multiplies by the experts of a layer with one grouped product, which PyTorch's autocast has no rule for: in
bfloat16 the rest of the model was rounded and the experts, most of it, ran in float32, slowly, and that much further from the
server. From here on a grouped product takes autocast's type, as torch.mm does. Batched products (`batched_mm`) obey it anyway.
"""

import functools

import torch
from torch import Tensor
from transformers.integrations import moe


def follow_autocast() -> None:
    """Once a process; outside of autocast nothing changes."""
    if not hasattr(moe._grouped_mm, "follows_autocast"):
        moe._grouped_mm = _following(moe._grouped_mm)


def _following(product):
    @functools.wraps(product)
    def grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        """[rows, in] by [experts, in, out] to [rows, out], rows grouped by expert."""
        device = input.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            input, weight = input.to(dtype), weight.to(dtype)
        return product(input, weight, offs)

    grouped_mm.follows_autocast = True
    return grouped_mm
