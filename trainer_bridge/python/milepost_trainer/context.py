"""Context parallelism: a row's tokens are shared out over several ranks, for episodes whose activations do not fit on one.

The ranks of a context have the same rows, and each runs the model on its own stretch of every row. Where tokens meet, in
attention, an all-to-all gives each rank the whole row for its share of the heads, and another takes the result back
(DeepSpeed-Ulysses, arXiv 2309.14509). So attention runs on whole rows and packing stays what it is. What comes out of the last
layer is by token again: the logprobs of the stretches are put together on every rank of the context, and from there each
computes the loss of the whole row.

Gradients. Each rank sends the gradient of its own stretch down, since it has the whole loss; the sum over the ranks of a
context is the gradient of one (policy.backward), and FSDP's mean over all ranks needs no change.

PyTorch's own context_parallel (torch.distributed.tensor.experimental) is not used: it has no strategy for attention on CPUs,
shares out by striping and so knows no packing, and replaces attention behind transformers' back.
"""

import dataclasses
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from milepost_trainer.errors import invalid
from milepost_trainer.ranks import Ranks

MIXERS = {"full_attention", "sliding_attention"}  # layers whose tokens meet in attention alone


@dataclass(frozen=True)
class Context:
    """This rank's place in a context of `size` ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def part(self, row):
        """The rank's stretch of a row (pack.Row). Rows are filled up to a multiple of `size` by a segment of its own, and
        `segments` stay those of the whole row: attention sees it whole. `sequence` and `time` stay whole, too."""
        length = row.tokens.shape[1]
        fill = -length % self.size
        stretch = (length + fill) // self.size
        start = self.rank * stretch
        mine = self._mine(row.where, stretch, self.rank)

        def cut(t: Tensor) -> Tensor:  # [1, L]
            return F.pad(t, (0, fill))[:, start : start + stretch]

        return dataclasses.replace(
            row, tokens=cut(row.tokens), positions=cut(row.positions), segments=row.segments + [fill] * (fill > 0),
            where=row.where[mine] - start, targets=row.targets[mine], context=self,
        )  # fmt: skip

    def _mine(self, where: Tensor, stretch: int, rank: int) -> Tensor:
        return (where >= rank * stretch) & (where < (rank + 1) * stretch)

    def gather(self, values: Tensor, row) -> Tensor:
        """[m] of this rank's stretch -> [M] of the row, in the row's order, which is that of the stretches."""
        stretch = -(-row.tokens.shape[1] // self.size)
        counts = [int(self._mine(row.where, stretch, r).sum()) for r in range(self.size)]
        return _Gather.apply(values, counts, self)

    def heads(self, x: Tensor) -> Tensor:
        """[1, H, L / size, D], the stretch's -> [1, H / size, L, D]: the whole row for this rank's heads."""
        _, h, stretch, d = x.shape
        x = _Exchange.apply(x.reshape(self.size, h // self.size, stretch, d), self)  # [stretches, H / size, L / size, D]
        return x.transpose(0, 1).reshape(1, h // self.size, self.size * stretch, d)

    def tokens(self, x: Tensor) -> Tensor:
        """[1, L, H / size, D] -> [1, L / size, H, D]: the stretch with all heads, the inverse of `heads`."""
        _, length, h, d = x.shape
        x = _Exchange.apply(x.reshape(self.size, length // self.size, h, d), self)  # [shares of heads, L / size, H / size, D]
        return x.transpose(0, 1).reshape(1, length // self.size, self.size * h, d)

    def query_key_value(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`heads` of each. Heads of keys and values that cannot be shared out evenly are repeated first."""
        if key.shape[1] % self.size:
            key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        return self.heads(query), self.heads(key), self.heads(value)


class _Exchange(torch.autograd.Function):
    """x [size, ...]: part r goes to rank r, and the result's part r is rank r's. It is its own inverse and adjoint."""

    @staticmethod
    def forward(ctx, x: Tensor, context: Context) -> Tensor:
        ctx.context = context
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous(), group=context.group)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Exchange.apply(grad, ctx.context), None


class _Gather(torch.autograd.Function):
    """[m] on each rank -> [M] on all. Every rank has the whole loss, so its own part of the gradient is whole already."""

    @staticmethod
    def forward(ctx, x: Tensor, counts: list[int], context: Context) -> Tensor:
        start = sum(counts[: context.rank])
        ctx.mine = slice(start, start + len(x))
        most = max(counts)
        parts = [x.new_empty(most) for _ in counts]
        dist.all_gather(parts, F.pad(x, (0, most - len(x))).contiguous(), group=context.group)
        return torch.cat([p[:n] for p, n in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad[ctx.mine], None, None


def join(net, size: int, group: Ranks) -> Context | None:
    """This rank's context of `size` ranks, next to each other; None where each has whole rows. All ranks call it."""
    if size <= 1:
        return None
    if group.world % size:
        raise invalid(f"context_parallel is {size}; allowed: a divisor of the {group.world} ranks")
    heads = net.config.num_attention_heads
    if heads % size:
        raise invalid(f"context_parallel is {size}; allowed: a divisor of the model's {heads} attention heads")
    if other := set(getattr(net.config, "layer_types", None) or ()) - MIXERS:
        raise invalid(
            f"context_parallel is {size}, but the model has layers of {', '.join(sorted(other))}; allowed: attention alone"
        )
    mesh = init_device_mesh(group.device.type, (group.world // size, size), mesh_dim_names=("data", "context"))
    return Context(mesh["context"].get_group(), group.rank % size, size)
