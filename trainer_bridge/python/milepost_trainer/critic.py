"""The value head of PPO: V(s_t) from the last hidden state, and the rule that it learns by.

Element t speaks of token t given the tokens before it, as everywhere: V_t is read from the hidden state that predicts
token t (verl reads the same one), so it is the value of the state in which token t was chosen. What the values are for,
advantages by GAE and the returns that the head learns, is computed by the orchestrator.

The loss is that of PPO2 and of verl's compute_value_loss: 0.5 * mean over trained tokens of
max((V - ret)^2, (V_clip - ret)^2) with V_clip = V_old + clamp(V - V_old, -clip, clip). V_old is the head's own before
the update, out of the batch file, so a replayed update is the same update.

It departs from verl in that the critic is a head on the policy's trunk, not a model of its own: half the memory and no
second forward pass. Whether its gradient reaches the trunk is a switch (`detach`).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from milepost_trainer.errors import invalid


@dataclass(frozen=True)
class ValueConfig:
    lr: float = 2e-2  # of the head; the trunk has the policy's
    coef: float = 0.1
    clip: float = 0.5  # 0 = no clipping
    detach: bool = False  # no gradient into the trunk: the policy trains as without a head

    def __post_init__(self):
        for field, ok, allowed in (
            ("lr", lambda x: x > 0, "above 0"),
            ("coef", lambda x: x > 0, "above 0"),
            ("clip", lambda x: x >= 0, "0 (no clipping) or more"),
        ):
            value = getattr(self, field)
            if not (math.isfinite(value) and ok(value)):
                raise invalid(f"value.{field} is {value}; allowed: {allowed}")


class ValueHead(torch.nn.Module):
    """hidden [M, W] -> weight . hidden / W + bias, [M] float32. It starts at 0: the first values are 0, and no random
    number is drawn for it. The division makes one learning rate fit every width: an AdamW step moves each weight by about
    lr, and so a value by about lr times the mean |hidden| + 1, instead of W times as much."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        # Values and returns are compared to a few per cent: float32 always.
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), self.weight[None] / len(self.weight), self.bias).squeeze(-1)


def loss(config: ValueConfig, values: Tensor, old: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """[N] each -> [N] loss a token, without the coefficient, and [N] bool where the clipped side was taken."""
    plain = (values - returns).square()
    if config.clip == 0:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    near = old + (values - old).clamp(-config.clip, config.clip)
    bounded = (near - returns).square()
    return 0.5 * torch.maximum(plain, bounded), (bounded > plain).detach()


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """1 - Var(returns - values) / Var(returns) over all tokens: 1 is perfect, 0 no better than a constant. None where
    the returns are all equal, since nothing is there to explain."""
    values, returns = values.double(), returns.double()
    if len(returns) < 2 or bool((returns == returns[0]).all()):
        return None
    return 1 - ((returns - values).var() / returns.var()).item()
