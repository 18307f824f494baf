"""AdamW, its learning rate and its one guarded step, shared by the update and the supervised step."""

import math
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from milepost_trainer.errors import TrainerError, invalid

SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class OptimizerConfig:
    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0  # 0 = no clipping

    def __post_init__(self):
        for field, ok, allowed in (
            ("lr", lambda x: x > 0, "above 0"),
            ("beta1", lambda x: 0 <= x < 1, "0 to below 1"),
            ("beta2", lambda x: 0 <= x < 1, "0 to below 1"),
            ("eps", lambda x: x > 0, "above 0"),
            ("weight_decay", lambda x: x >= 0, "0 or more"),
            ("clip_norm", lambda x: x >= 0, "0 or more"),
        ):
            value = getattr(self, field)
            if not (math.isfinite(value) and ok(value)):
                raise invalid(f"optimizer.{field} is {value}; allowed: {allowed}")


def make(model, head=None) -> torch.optim.AdamW:
    """AdamW without state, of what is trained, to be configured before each step. Weight decay falls on matrices only. A
    value head is a last group of its own, without decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    rest = [p for p in trained if p.dim() < 2]
    groups = [{"params": matrices, "decays": True}, {"params": rest, "decays": False}]
    if head is not None:
        groups.append({"params": list(head.parameters()), "decays": False, "value_head": True})
    return torch.optim.AdamW(groups, fused=True)


def configure(optimizer, config: OptimizerConfig, lr: float, head_lr: float = 0.0) -> None:
    for group in optimizer.param_groups:
        group["lr"] = head_lr if group.get("value_head") else lr
        group["betas"], group["eps"] = (config.beta1, config.beta2), config.eps
        group["weight_decay"] = config.weight_decay if group["decays"] else 0.0


def step(model, optimizer, clip_norm: float, loss: float, head=None, max_norm: float = 0.0) -> float:
    """Clips, checks and steps; returns the model's norm before clipping. Raises before the step where a number is not finite
    or the norm is above max_norm (0 = no bound).

    `loss` is that of all ranks, and the norms are those of whole gradients, so all ranks step or none does.

    A value head is clipped by itself, by the same bound, so that its gradient takes nothing from the policy's.
    """
    bound = clip_norm if clip_norm > 0 else math.inf
    norms = [_clip(part, bound) for part in (model, head) if part is not None]
    if not all(math.isfinite(x) for x in (loss, *norms)):
        optimizer.zero_grad(set_to_none=True)
        found = " and ".join(str(x) for x in norms)
        raise TrainerError("internal", f"loss {loss} and gradient norm {found} must all be finite; the weights were not changed")
    if max_norm and norms[0] > max_norm:
        optimizer.zero_grad(set_to_none=True)
        raise TrainerError(
            "internal",
            f"the gradient norm is {norms[0]:.4g}; update.guard.max_grad_norm is {max_norm:g}. The weights were not changed",
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norms[0]


def _clip(part, bound: float) -> float:
    norm = torch.nn.utils.clip_grad_norm_(part.parameters(), bound)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()


def schedule(kind: str, step: int, steps: int, warmup: int, final: float) -> float:
    """Share of the learning rate at step (0 to steps - 1): linear warm-up, then down to `final` at the last step."""
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - 1 - warmup)
    down = 0.5 * (1 + math.cos(math.pi * done)) if kind == "cosine" else 1 - done
    return final + (1 - final) * down
