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
    """The routers of a causal model, which from here on take the routes of a row where it has any."""

    def __init__(self, net: nn.Module):
        self.routers: dict[int, nn.Module] = {}  # by layer
        for index, layer in enumerate(net.model.layers):
            if (router := router_of(layer)) is not None:
                self.routers[index] = router
                router.forward = functools.partial(_choose, router, router.forward)
                layer.forward = functools.partial(_pass_on, router, index, layer.forward)
        if not self.routers:
            what = f"routing_replay is on, and {type(net).__name__} has no experts to choose from"
            raise invalid(f"{what}; allowed: a mixture of experts, or routing_replay off")
        some = next(iter(self.routers.values()))
        self.layers, self.top_k, self.experts = len(net.model.layers), some.top_k, some.num_experts

    def changed(self) -> int:
        """Choices, a token and layer each, of the last pass with routes that the routers would have made differently."""
        return int(sum(router.changed for router in self.routers.values()))

    def check(self, sequences: list) -> None:
        """Raises where the routes of a batch (list of batch.Sequence) are not of this model."""
        for i, s in enumerate(sequences):
            what = self._fault(s.routes)
            if what:
                raise invalid(f"row {i} (episode {s.episode!r}): routed_experts {what}")

    def _fault(self, routes: Tensor | None) -> str:
        if routes is None:
            return "is missing, which routing_replay needs; allowed: routes of the sampler, or routing_replay off"
        if routes.shape[1:] != (self.layers, self.top_k):
            layers, top_k = routes.shape[1:]
            return f"is of {layers} layers and {top_k} experts a token; allowed: {self.layers} and {self.top_k}, the model's"
        chosen = routes[:, list(self.routers)]  # [R, layers with experts, K]
        if len(chosen) and not (int(chosen.min()) >= 0 and int(chosen.max()) < self.experts):
            return f"names expert {int(chosen.max())}; allowed: 0 to {self.experts - 1}"
        for apart in range(1, self.top_k):
            if (chosen[..., apart:] == chosen[..., :-apart]).any():
                return f"names an expert twice for one token; allowed: {self.top_k} different ones"
        return ""


def router_of(layer: nn.Module) -> nn.Module | None:
    """The router of a decoder layer; None where its feed-forward part is dense."""
    for block in layer.modules():
        for m in block.children() if hasattr(block, "experts") else ():
            weight, experts = getattr(m, "weight", None), getattr(m, "num_experts", None)
            if hasattr(m, "top_k") and isinstance(weight, Tensor) and weight.dim() == 2 and len(weight) == experts:
                return m
    return None


def _pass_on(router: nn.Module, index: int, forward, *args, routes: Tensor | None = None, **kwargs):
    """A decoder layer's forward; routes [L, layers, K] reach its router."""
    if routes is None:
        return forward(*args, **kwargs)
    router.routes = routes[:, index].long()
    try:
        return forward(*args, **kwargs)
    finally:
        router.routes = None


def _choose(router: nn.Module, forward, *args, **kwargs):
    """A router's forward."""
    routes = getattr(router, "routes", None)  # [L, K] int64
    if routes is None:
        return forward(*args, **kwargs)
    with _Choice(routes, router.num_experts) as choice:
        out = forward(*args, **kwargs)
    if choice.times != 1:
        what = f"{type(router).__name__} chose its experts by torch.topk {choice.times} times"
        raise TrainerError("internal", f"{what}; routing_replay needs a router that does so once")
    router.changed = choice.changed()
    return out


class _Choice(TorchFunctionMode):
    """While it is active, torch.topk over all experts takes `routes` [L, K], and its own choice where they are UNKNOWN."""

    def __init__(self, routes: Tensor, experts: int):
        super().__init__()
        self.routes, self.experts, self.times = routes, experts, 0
        self.own: Tensor | None = None  # [L, K]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return out
        scores = args[0] if args else kwargs["input"]
        if scores.shape[-1] != self.experts or out.indices.shape != self.routes.shape:
            return out  # of groups of experts
        self.times, self.own = self.times + 1, out.indices
        indices = torch.where(self.routes == UNKNOWN, out.indices, self.routes)
        return torch.return_types.topk((scores.gather(-1, indices), indices))

    def changed(self) -> Tensor:
        """Number of tokens whose recorded experts are not the router's own."""
        same = (self.own[:, :, None] == self.routes[:, None, :]).any(-1).all(-1)
        return ((self.routes[:, 0] != UNKNOWN) & ~same).sum()


def pad(routes: list[Tensor], lengths: list[int]) -> Tensor:
    """The routes [R_i, layers, K] of sequences of T_i >= R_i tokens -> [sum of T_i, layers, K] int16, UNKNOWN behind R_i."""
    parts = []
    for r, n in zip(routes, lengths, strict=True):
        r = r[:n].to(torch.int16)
        parts += [r, r.new_full((n - len(r), *r.shape[1:]), UNKNOWN)]
    return torch.cat(parts)
