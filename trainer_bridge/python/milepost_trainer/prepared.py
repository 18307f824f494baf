"""What an update needs of a batch: its trained sequences, cut behind their last trained token, with their streams."""

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost_trainer import batch, loss, pack


@dataclass
class Prepared:
    """The trained part of a batch: each sequence up to its last trained token, and its streams on trained tokens [K]."""

    names: list[str]  # "row 3 (episode 'e3')"
    ids: list[Tensor]  # [T] int64
    wanted: list[Tensor]  # [T] bool
    advantage: list[Tensor]
    sampler: list[Tensor]
    old: list[Tensor] | None = None
    reference: list[Tensor] | None = None
    values: list[Tensor] | None = None  # the value head's at the start; with returns, or None where the batch has none
    returns: list[Tensor] | None = None
    routes: list[Tensor] | None = None  # [R, layers, top_k], R <= T or more: the sampler's experts; None = not replayed

    def tokens(self, row: pack.Row, old: Tensor) -> loss.Tokens:
        def cat(streams):
            return None if streams is None else torch.cat([streams[i] for i in row.members]).to(old.device)

        return loss.Tokens(
            sequence=row.sequence,
            sequences=len(row.members),
            mask=torch.ones_like(old),
            advantage=cat(self.advantage),
            logprob_old=old,
            logprob_sampler=cat(self.sampler),
            logprob_reference=cat(self.reference),
        )


def prepare(sequences: list[batch.Sequence], replay: bool) -> Prepared:
    named = [(f"row {i} (episode {s.episode!r})", s) for i, s in enumerate(sequences) if s.mask.any()]
    trained = [s for _, s in named]
    ends = [int(s.mask.nonzero().max()) + 1 for s in trained]  # nothing after the last trained token matters to it
    valued = bool(trained) and trained[0].values is not None
    return Prepared(
        names=[name for name, _ in named],
        ids=[s.tokens[:n] for s, n in zip(trained, ends, strict=True)],
        wanted=[s.mask[:n] for s, n in zip(trained, ends, strict=True)],
        advantage=[s.advantages[s.mask] for s in trained],
        sampler=[s.logprobs[s.mask] for s in trained],
        values=[s.values[s.mask] for s in trained] if valued else None,
        returns=[s.returns[s.mask] for s in trained] if valued else None,
        routes=[s.routes for s in trained] if replay else None,
    )
