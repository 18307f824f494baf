"""Rollout routing replay: a mixture of experts trains on the experts that the sampler chose (R3, arXiv 2510.11370).

Sampler and trainer round differently, and where two experts of a token score nearly alike they choose different ones. The
token's probability then jumps, which no importance weight mends. With replay the trainer's routers take the recorded
choice. Only the choice: a token's gates are still computed by the trainer's own router from the forced experts' scores,
so the router learns. Tokens without a record (behind the last sampled one) are routed as always.

How. transformers 5 gives every mixture a router module (`top_k`, `num_experts`, `weight`) beside its `experts`, whose
forward picks by torch.topk over the scores of all experts and works on with what it picked. Each router runs its own code
here, with that one call answered by the record. So whatever a model does before (softmax or sigmoid, groups, a bias) and
after (normalising, scaling) holds for the forced experts too. A router that does not pick exactly once is refused.
Where groups of experts are masked by score 0 (DeepSeek-V2's group_limited_greedy), an expert of a group that the trainer
would not have taken keeps gate 0.

The record travels as an argument of the decoder layers, not as state: activation checkpointing runs a layer again in the
backward pass, with the same arguments.
"""

import functools

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from milepost_trainer.errors import TrainerError, invalid

UNKNOWN = -1  # in place of an expert: the router chooses


class Replay:
    """The routers of a causal model, and how often the record differed from what they would have chosen."""

    def __init__(self, net: nn.Module):
        self.routers: dict[int, nn.Module] = {}
        for index, layer in enumerate(net.model.layers):
            if (router := router_of(layer)) is not None:
                self.routers[index] = router
                router.forward = functools.partial(self._choose, router, router.forward)
                layer.forward = functools.partial(_with_routes, router, index, layer.forward)
        if not self.routers:
            raise invalid(
                f"routing_replay is on, but {type(net).__name__} has no routed experts; allowed: a mixture of experts, or off"
            )
        some = next(iter(self.routers.values()))
        self.layers, self.top_k, self.experts = len(net.model.layers), some.top_k, some.num_experts
        self.choices = 0  # replayed, a token and layer each
        self.changed: Tensor | int = 0  # of them, other experts than the router's own

    def _choose(self, router, forward, hidden, *args, **kwargs):
        routes = getattr(router, "routes", None)  # [L, K] int64 or None
        if routes is None:
            return forward(hidden, *args, **kwargs)
        choice = _Choice(routes, router.num_experts)
        with choice:
            out = forward(hidden, *args, **kwargs)
        if choice.own is None or choice.times != 1:
            raise TrainerError(
                "internal",
                f"{type(router).__name__} chose its experts {choice.times} times by torch.topk; routing_replay needs once",
            )
        self._count(choice)
        return out

    @torch.no_grad()
    def _count(self, choice: "_Choice") -> None:
        known = choice.routes[:, 0] != UNKNOWN
        same = (choice.own[:, :, None] == choice.routes[:, None, :]).any(-1).all(-1)
        self.choices += int(known.sum())
        self.changed = self.changed + (known & ~same).sum()

    def counted(self) -> tuple[float, float]:
        """Choices replayed and changed since the last call."""
        out = float(self.choices), float(self.changed)
        self.choices, self.changed = 0, 0
        return out

    def check(self, sequences: list) -> None:
        """Raises where the routes of a batch (batch.Sequence) are not this model's."""
        for i, s in enumerate(sequences):
            place = f"row {i} (episode {s.episode!r}): routed_experts"
            if s.routes is None:
                raise invalid(
                    f"{place} is missing, which routing_replay needs; allowed: routes of the sampler, or routing_replay off"
                )
            if s.routes.shape[1:] != (self.layers, self.top_k):
                shape = " by ".join(map(str, s.routes.shape[1:]))
                raise invalid(
                    f"{place} is for {shape} layers and experts a token; allowed: {self.layers} by {self.top_k}, the model's"
                )
            chosen = s.routes[:, list(self.routers)]  # [R, routed layers, K]
            if len(chosen) and (worst := int(chosen.max())) >= self.experts:
                raise invalid(f"{place} names expert {worst}; allowed: 0 to {self.experts - 1}")
            for k in range(1, self.top_k):
                if (chosen[..., k:] == chosen[..., :-k]).any():
                    raise invalid(f"{place} names an expert twice for one token and layer; allowed: {self.top_k} different ones")


class _Choice(TorchFunctionMode):
    """While it is active, torch.topk over all experts takes `routes` [L, K], and its own choice where they are UNKNOWN."""

    def __init__(self, routes: Tensor, experts: int):
        super().__init__()
        self.routes, self.experts, self.times, self.own = routes, experts, 0, None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is not torch.topk and func is not torch.Tensor.topk:
            return out
        scores = args[0] if args else kwargs["input"]
        if scores.shape[-1] != self.experts or out.indices.shape[-1] != self.routes.shape[-1]:
            return out  # of groups
        self.times, self.own = self.times + 1, out.indices
        indices = torch.where(self.routes == UNKNOWN, out.indices, self.routes)
        return torch.return_types.topk((scores.gather(-1, indices), indices))


def router_of(layer: nn.Module) -> nn.Module | None:
    """The router of a decoder layer; None where its feed-forward part is dense."""
    for block in layer.modules():
        if not hasattr(block, "experts"):
            continue
        for m in block.children():
            weight = getattr(m, "weight", None)
            if (
                isinstance(weight, Tensor)
                and weight.dim() == 2
                and hasattr(m, "top_k")
                and weight.shape[0] == getattr(m, "num_experts", 0)
            ):
                return m
    return None


def _with_routes(router, index, forward, *args, routes: Tensor | None = None, **kwargs):
    """A decoder layer's forward; routes [L, layers, K] reach its router."""
    if routes is None:
        return forward(*args, **kwargs)
    router.routes = routes[:, index].long()
    try:
        return forward(*args, **kwargs)
    finally:
        router.routes = None


def pad(routes: list[Tensor], lengths: list[int]) -> Tensor:
    """The routes [R_i, layers, K] of sequences of T_i >= R_i tokens -> [sum of T_i, layers, K] int16, UNKNOWN behind R_i."""
    parts = []
    for r, n in zip(routes, lengths, strict=True):
        r = r[:n].to(torch.int16)
        parts += [r, r.new_full((n - len(r), *r.shape[1:]), UNKNOWN)]
    return torch.cat(parts)
