"""The trained network as one module: a causal model, its value head where there is one, and how both are sharded.

Everything that needs a parameter runs inside `Policy.forward`, since that is where FSDP has the parameters together.
With one rank nothing is sharded. With several, each decoder layer is a unit of FSDP2 and what is left (embeddings, last
norm, head of the language model, value head) another; parameters, gradients and optimizer state are float32 DTensors.

Gradients are those of the whole optimizer step whatever the number of ranks: FSDP averages over ranks, so `backward`
multiplies by their number.
"""

import dataclasses
import functools
import gc
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

from milepost_trainer import context, critic, experts, kernels, lora, pack, ranks, routing
from milepost_trainer.options import PLAIN, Options
from milepost_trainer.ranks import Ranks

PREFIX, HEAD = "net.", "head."  # of the causal model's names, and the value head's, in the policy's


class Policy(nn.Module):
    """A causal model, with a value head where one is wanted. recompute: activation checkpointing. routing_replay: rows may
    bring the experts of their tokens."""

    def __init__(self, net: nn.Module, value_head: bool = False, recompute: bool = False, routing_replay: bool = False):
        super().__init__()
        self.net = net
        self.head = critic.ValueHead(net.config.hidden_size) if value_head else None
        self.sharded = False
        self.adapter: lora.Adapter | None = None  # where the net has one; the weights below it are frozen
        self.options = PLAIN  # that it was made with
        self.context: context.Context | None = None  # where several ranks share rows
        self.replay = routing.Replay(net) if routing_replay else None  # before recompute, which passes routes on
        if recompute:
            recompute_layers(net)

    def forward(self, row: pack.Row, temperature: float = 1.0, entropy: bool = False, value: str = ""):
        """Logprob and entropy [M] of the wanted tokens of a row, and their values [M], or None.

        value is "" (none), "only" (logprob and entropy are None), "attached" or "detached" (no gradient into the trunk).
        """
        if self.context is None:
            return self._outputs(row, temperature, entropy, value)
        parts = self._outputs(self.context.part(row), temperature, entropy, value)
        wanted = (value != "only", entropy and value != "only", bool(value))
        return tuple(self.context.gather(p, row) if w else p for p, w in zip(parts, wanted, strict=True))

    def _outputs(self, row: pack.Row, temperature: float, entropy: bool, value: str):
        if not value:
            return *pack.row_logprobs(self.net, row, temperature, entropy), None
        hidden = pack.row_hidden(self.net, row)  # [M, W]
        if value == "only":
            return None, None, self.head(hidden)
        logprob, uncertainty = pack.hidden_logprobs(self.net, hidden, row, temperature, entropy)
        return logprob, uncertainty, self.head(hidden.detach() if value == "detached" else hidden)

    def tensors(self) -> dict[str, Tensor]:
        """The causal model's state by its own names, an adapter's and what it stands on apart; DTensors where it is
        sharded."""
        if self.sharded:
            self.reshard()
        return {k.removeprefix(PREFIX): v for k, v in self.state_dict().items() if k.startswith(PREFIX)}

    def trained(self) -> dict[str, Tensor]:
        """The part of the state that training changes: all but frozen parameters."""
        frozen = {name for name, p in self.named_parameters() if not p.requires_grad}
        return {k: v for k, v in self.state_dict().items() if k not in frozen}

    def exported(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole values of the weights that a sampler loads, an adapter merged into them; one is gathered at a
        time. All ranks go through it together."""
        state = self.tensors()
        for name in state:
            if not name.endswith(lora.MATRICES):
                yield name.replace(lora.BASE, ""), lora.merged(name, state, self.adapter, whole)


def equip(net: nn.Module, value_head: bool, recompute: bool, options: Options, group: Ranks) -> Policy:
    """A model's policy with what the options add to it, not placed yet. All ranks call it."""
    with group.together():
        experts.follow_autocast()
        kernels.apply(net, options.kernels, group.device)
    made = Policy(net, value_head, recompute, options.routing_replay)
    made.options = options
    made.context = context.join(net, options.context_parallel, group)
    return made


def recompute_layers(net: nn.Module) -> None:
    """Activation checkpointing: each decoder layer keeps its input alone and runs again in the backward pass."""
    for layer in net.model.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def place(policy: Policy, group: Ranks, weights: dict[str, Tensor] | None) -> Policy:
    """The policy, on this group of ranks. With one it holds its weights; with several its model is a skeleton on the meta
    device, and `weights` is rank 0's state of it (None on the others)."""
    if group.world == 1:
        return policy.to(group.device)
    hollow(policy, group)
    state = {PREFIX + k: v for k, v in (weights or {}).items()}
    if policy.head is not None and group.first:
        state |= {HEAD + k: torch.zeros(v.shape) for k, v in policy.head.state_dict().items()}
    set_model_state_dict(policy, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return policy


def hollow(policy: Policy, group: Ranks) -> Policy:
    """The policy of a skeleton (model.skeleton), sharded, with room for its weights and none of them yet; a value head
    has its first values."""
    if group.world > 1:
        for layer in policy.net.model.layers:
            fully_shard(layer, mesh=group.mesh)
        fully_shard(policy, mesh=group.mesh)
        policy.sharded = True
    return policy._apply(lambda t: torch.empty_like(t, device=group.device) if t.is_meta else t.to(group.device))


def full_state(policy: Policy, group: Ranks) -> dict[str, Tensor]:
    """`Policy.exported` on the CPU of rank 0; empty elsewhere. All ranks call it."""
    out = {}
    for name, value in policy.exported():
        if group.first:
            out[name] = value.cpu()
    return out


def weights_sha256(policy: Policy, group: Ranks) -> str:
    """sha256_of the causal model's state, one tensor gathered at a time; with an adapter, which is all that changes, that
    of its tensors with the base's. Computed once as long as the weights do not change, by the first rank's word. All ranks."""
    now = stamp(policy)
    known, digest = getattr(policy, "hashed", (None, ""))
    if not group.broadcast(known == now):
        if policy.adapter is None:
            digest = sha256_of(policy.tensors(), group)
        else:
            digest = policy.adapter.sha256(sha256_of(lora.own_tensors(policy.tensors()), group))
        policy.hashed = now, digest
    return digest


def stamp(policy: Policy) -> tuple[int, int]:
    """Changes with every change of this rank's weights. PyTorch counts what is done in place to a tensor (to a sharded one, by
    its DTensor), except by a fused optimizer, whose steps are counted here."""
    return _steps, sum(p._version for p in policy.parameters())


_steps = 0  # of any optimizer in this process


def _count_step(*_) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count_step)


def sha256_of(state: dict[str, Tensor], group: Ranks) -> str:
    """Over names, shapes and bytes of all weights in order of name; equal weights have equal hashes in every export and
    on any number of ranks. All ranks call it; what it hashes is rank 0's."""
    h = hashlib.sha256()
    for name, p in sorted(state.items()):
        p = whole(p.detach()).cpu().contiguous()
        if group.first:
            h.update(json.dumps([name, list(p.shape), str(p.dtype)]).encode())
            h.update(p.view(torch.uint8).numpy() if p.dim() else p.reshape(1).view(torch.uint8).numpy())
    return group.broadcast(h.hexdigest())


def whole(t: Tensor) -> Tensor:
    """A DTensor's full value; all ranks call it. Any other tensor as it is."""
    return t.full_tensor() if isinstance(t, DTensor) else t


def release(group: Ranks) -> None:
    """Gives back the memory of a model that another one has replaced: modules refer to themselves in cycles."""
    gc.collect()
    if group.device.type == "cuda":
        torch.cuda.empty_cache()


def backward(loss: Tensor, group: Ranks) -> None:
    """Adds the gradient of the sum over ranks of `loss`."""
    (loss * group.world if group.world > 1 else loss).backward()


@dataclass
class Pass:
    """A row to go through, and what becomes of it."""

    row: pack.Row
    trains: bool  # its loss counts; else it is to be multiplied by 0
    tells: bool  # its figures count: of the ranks that share a row, one's do


def passes(policy: Policy, ids, wanted, members: list[int], limit: int, group: Ranks, routes=None) -> Iterator[Pass]:
    """This rank's rows of the members, at most `limit` tokens each, on its device when their turn comes; ids, wanted and
    routes as pack.build's.

    Ranks make equally many passes, since every pass is a collective: one with fewer rows repeats a short sequence that
    does not count. Ranks of a context have the same rows.
    """
    size, place = (1, 0) if policy.context is None else (policy.context.size, policy.context.rank)
    shares = ranks.assign([len(ids[i]) for i in members], group.world // size)
    plans = [pack.plan([len(ids[members[k]]) for k in share], limit) for share in shares]
    mine = group.rank // size
    out = [
        Pass(pack.build(ids, wanted, [members[shares[mine][k]] for k in part], routes), True, place == 0) for part in plans[mine]
    ]
    short = max(len(p) for p in plans) - len(out)
    if short:
        filler = pack.build(ids, wanted, [min(members, key=lambda i: (len(ids[i]), i))], routes)
        out += [Pass(filler, False, False)] * short
    return (dataclasses.replace(p, row=p.row.to(group.device)) for p in out)


def evaluate(
    policy, ids: list[Tensor], wanted: list[Tensor], limit: int, temperature: float, group: Ranks, value=False, routes=None
):
    """[K_i] float32 on the CPU for each sequence, without gradient: logprob, or value, of its wanted tokens."""
    known: dict[int, Tensor] = {}
    with torch.no_grad():
        for p in passes(policy, ids, wanted, list(range(len(ids))), limit, group, routes) if ids else ():
            row = p.row
            logprob, _, values = policy(row, temperature, value="only" if value else "")
            read = values if value else logprob
            if p.tells:
                known |= {i: read[row.sequence == k].float().cpu() for k, i in enumerate(row.members)}
    if policy.sharded:
        policy.reshard()  # the root keeps its parameters together after a pass without gradient
    known = group.share(known)
    return [known[i] for i in range(len(ids))]
