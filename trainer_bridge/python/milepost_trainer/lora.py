"""Low-rank adapters (LoRA, Hu et al. 2021): the model's own weights are frozen, and beside each chosen linear layer W two
small matrices are trained: y = W x + alpha / rank * B A x. B starts at 0, so that the first policy is the model's."""

import math
from dataclasses import dataclass

from milepost_trainer.errors import invalid


@dataclass(frozen=True)
class LoraConfig:
    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ()  # last parts of module names; empty = every linear layer but the head

    def __post_init__(self):
        if self.rank < 1:
            raise invalid(f"lora.rank is {self.rank}; allowed: 1 or more")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise invalid(f"lora.alpha is {self.alpha}; allowed: above 0")
